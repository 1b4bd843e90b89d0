/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * planted.h - bugs that the tests plant, one at a time, to prove that the
 * explorer and the simulator would find them.  Only a build with
 * FBY_PLANTED_BUGS contains any of it; release builds and the kernel module
 * never define that.
 */
#ifndef FBY_PLANTED_H
#define FBY_PLANTED_H

#ifdef FBY_PLANTED_BUGS

#ifdef __KERNEL__
#error "planted bugs have no place in the kernel"
#endif

/* X(name, what is wrong) */
#define FBY_PLANTED(X) \
	X(WRITE_NO_FENCE, "a write is acknowledged without its fence") \
	X(HEADER_BEFORE_DATA_NO_CRC, "with checksums off, no fence between data and header") \
	X(OPEN_NO_FENCE, "a chunk's open line is not durable before its page lines") \
	X(STALE_EPOCH, "a chunk is reopened under its old epoch") \
	X(TORN_TAIL_ACCEPTED, "recovery takes the last batch without checking its data") \
	X(DROPPED_NOT_VOIDED, "recovery leaves a dropped header on the media") \
	X(WATERMARK_BEFORE_FLUSH, "the watermark is written before the origin is flushed") \
	X(WATERMARK_NO_FENCE, "the watermark's record is written without a fence") \
	X(CUT_PAST_IN_FLIGHT, "the destage cut ignores sequence numbers in flight") \
	X(NEW_VOLUME_OLD_WATERMARK, "a new volume starts with watermark 0") \
	X(FREE_BEFORE_WATERMARK, "pages are released before the watermark is durable") \
	X(ORIGIN_ERROR_DROPS, "a failed origin write counts as done") \
	X(FLUSH_ERROR_IGNORED, "a failed origin flush counts as done") \
	X(DISCARD_FORGOTTEN, "replay ignores discard and zero entries") \
	X(MERGE_LOSES_OLD, "a partial write forgets the sectors cached before") \
	X(MERGE_UNVERIFIED, "a partial write copies old sectors without verifying them") \
	X(SEQ_NOT_FRESH, "a write may take a sequence number below that of the page it replaces") \
	X(CRC_SKIPS_LOST, "the header's CRC does not cover the bitmaps") \
	X(WATERMARK_IGNORED, "replay ignores the watermark") \
	X(LOWEST_SEQ_WINS, "replay keeps the first entry of a block that it meets") \
	X(READ_UNVERIFIED, "reads deliver data whose checksum fails") \
	X(DAMAGE_DROPPED, "destage forgets a damaged page, and older data shows") \
	X(TAIL_RESEALED_SHORT, "recovery seals a chunk one page short") \
	X(CLEAN_NOT_CLEARED, "open leaves the clean flag set") \
	X(HOLE_SEQ_BEYOND, "a lost line is dated by torn lines beyond the end of its chunk") \
	X(NEXT_SEQ_REUSED, "recovery starts again from sequence number 1") \
	X(DESTAGE_UNVERIFIED, "destage writes a damaged page to the origin") \
	X(CLEAN_BEFORE_FLUSH, "a neighbour written along counts as clean before the flush") \
	X(CLEAN_ANY_EPOCH, "a neighbour written along counts as clean though it was replaced") \
	X(RELEASE_NEWER, "destage unlinks a block's page although it is a newer one") \
	X(BYPASS_OVER_CACHED, "a write goes past the cache although its block is cached") \
	X(BYPASS_OVERTAKEN, "a write through the cache does not wait for one past it") \
	X(FLUSH_FORGETS_BYPASS, "a flush is not forwarded after a bypassed write") \
	X(FLUSH_TAKES_LATER, "a flush counts for what was bypassed while it was under way") \
	X(ATTACH_FORGETS_BYPASS, "what was bypassed before a crash of the host counts as flushed") \
	X(ATTACH_FORGETS_FAILURE, "a failed flush that nobody was told of is forgotten by the next attach") \
	X(HOST_FAILURE_IGNORED, "destage goes on although the origin told another that it failed") \
	X(FLUSH_FAILURE_TOLD_LATE, "a failed flush of destage's is unknown until its next step") \
	X(FLUSH_OVERLAP_ONE_TOLD, "of two flushes that overlap, one is told of a failure") \
	X(FLUSH_TELLS_FOR_LATER, "a flush that is told of a failure hides it from what was written after it began") \
	X(FLUSH_COVERS_NOTHING, "a bypassed write is durable by what was bypassed before it") \
	X(RANGE_UNCLAIMED, "discards and zeroes past the cache do not claim their blocks") \
	X(CLEAN_OF_OTHER_ORIGIN, "what was written along to one origin counts as clean for the next") \
	X(OWED_IGNORED, "a volume takes the chunks that others are entitled to") \
	X(MOVE_UNVERIFIED, "relocation gives damaged data a new checksum") \
	X(SEAL_ONE_COPY, "a seal is written once, and its copy stays what it was") \
	X(SEAL_COPY_NOT_HEALED, "recovery overwrites a seal while only one line of the newer one is there") \
	X(SEAL_EPOCH_IGNORED, "the epoch of a seal does not count where the open line is lost") \
	X(HEADERS_LOST_SILENT, "a chunk without seals is taken for one that was never sealed") \
	X(LOSS_FORGOTTEN_AFTER_CLEAN, "recovery writes down what is lost after it has cleared the clean flag") \
	X(PACKED_FOR_EVER, "lost blocks are carried forward for space again and again, though that makes none") \
	X(COPIES_NOT_TOLD, "a drain ends when what was copied within the pool meanwhile is in the pool alone") \
	X(HANG_STOPS_RELOCATION, "nothing is moved out of mostly dead chunks while an origin hangs that is to have their pages") \
	X(SLOW_TAKEN_FOR_HUNG, "an origin that works slowly counts as one that hangs: pages are moved in a drain, which never ends") \
	X(DRAIN_KEEPS, "a round goes on to keep pages when a drain has begun, which does not wait for the copies") \
	X(KEPT_NOT_MOVED, "a page that a round keeps is not moved before the watermark passes it") \
	X(KEPT_UNSEALED, "the watermark passes pages whose copies may pass for a torn tail") \
	X(CARRIED_UNSEALED, "the watermark passes lost blocks whose new entries may pass for a torn tail") \
	X(KEPT_AGE_LOST, "a page that is kept counts as young again") \
	X(REFUSED_FIRST_KEPT, "of a request that the origin refused the first page alone counts as refused") \
	X(REFUSED_ALONG_CLEAN, "a neighbour written along counts as clean though the origin refused the request") \
	X(REFUSED_LEFT_OUT_GOES, "pages that a round leaves out, since requests were refused, count as home") \
	X(REFUSED_NOT_MOVED, "the watermark passes a page that the origin refused, without a copy") \
	X(REFUSED_TRIED_AT_ONCE, "what the origin refused is tried again without a pause") \
	X(REFUSED_COPIED_FOR_NOTHING, "what the origin refused is copied though nothing else of the round is home") \
	X(REFUSED_CUT_AGAIN, "a round that looks behind what was refused is cut short again and again") \
	X(REFUSED_HIDES_REST, "what the origin refused fills a round's list, and holds back what lies behind") \
	X(BUFFER_IN_FLIGHT, "a buffer is filled again that a request in flight has") \
	X(KEPT_IN_DRAIN, "a round of a drain keeps isolated pages") \
	X(ALONG_LET_GO, "neighbours newer than the cut are let go with the round that wrote them along") \
	X(APPEND_NO_FENCE, "an entry of a log is acknowledged without its fence") \
	X(COUNTERS_NOT_STORED, "an entry of a log does not say how many come before it") \
	X(GENERATION_NOT_WAITED, "a generation begins while entries of the one before are in flight") \
	X(TORN_ENTRY_ACCEPTED, "the last entry of a log counts, though its body did not arrive") \
	X(GC_BY_WRONG_TXG, "chunks of a log are given back while the newest txg in them is unsynced") \
	X(SEAL_OF_LOG_FORGOTTEN, "a claim does not say how many entries the last generation has") \
	X(CHECKPOINT_BEFORE_EFFECT, "an entry counts as replayed before its effect is there") \
	X(CHECKPOINT_FORGOTTEN, "an entry that was replayed does not count as replayed") \
	X(HEADER_ENDS_WALK, "an entry whose header cannot be read hides those behind it in the chunk") \
	X(EARLIER_PERIOD_HELD, "chunks of a log's earlier period are held for the one that is") \
	X(SILENT_LOG_KEEPS, "a log that has fallen silent keeps open chunks that it does not need") \
	X(OPEN_LINE_OF_BEFORE, "the open line of a chunk says the kind that it had before") \
	X(SILENT_BY_WRONG_TXG, "where space is short, chunks of a log are given back that its consumer has not synced") \
	X(GUID_IGNORED, "a claim takes entries of an earlier period") \
	X(STALE_HEADER_TAKEN, "a claim takes a header of an earlier period, and frees the chunks of the newest") \
	X(STORED_NOT_RECORDED, "of a consumer who has stored a log's header the record does not know it") \
	X(END_NOT_RECORDED, "the record does not say that a consumer's log was released") \
	X(ENTRY_EPOCH_IGNORED, "entries of an earlier use of the chunk count") \
	X(CREATE_NOT_RECORDED, "the record does not say that a log has begun") \
	X(DESTROY_NOT_RECORDED, "the record does not say that a log has ended") \
	X(MISSING_NOT_COUNTED, "recovery does not compare the entries of a chunk with what its seal says") \
	X(SYNC_NOT_RECORDED, "a sync makes room for a txg that the record on the media does not allow") \
	X(MARK_NOT_RECORDED, "the record does not count that the origin is marked") \
	X(MARK_NUMBER_AGAIN, "a mark has the number of one before it") \
	X(READS_LEAVE_NONE, "while somebody reads from the origin, destage has no request, and its round ends early") \
	X(REQUEST_LAST_RUN_FORGOTTEN, "a request's read leaves out what the origin has of its end") \
	X(REQUEST_JOINED_FAILS, "a request's read fails where the origin cannot read what lies between its parts") \
	X(REQUEST_ORIGIN_ERROR_DROPS, "a request whose write past the cache failed goes on as if it had not") \
	X(REQUEST_FLUSH_LEFT_OUT, "a request that is to be durable is acknowledged without the flush that it is owed") \
	X(REQUEST_TICKET_LEFT_OUT, "a request of a volume in a grouped pool is answered before its ticket is durable") \
	X(REQUEST_TICKET_FAILED, "a write past a cached block waits for its release when the device has failed") \
	X(REQUEST_WAKE_DROPPED, "a write that has to wait wakes nobody for the slot that it gives back") \
	X(REQUEST_UNSETTLED, "a write-through is acknowledged before the origin has what went through the cache") \
	X(STATIC_NO_FENCE, "a write to a static volume is acknowledged without its fence") \
	X(STATIC_IN_PLACE, "a static volume's block is written over its newest page") \
	X(STATIC_CONFLICT_DROPS, "where two blocks meet in a slot, the newest page of one is written over") \
	X(STATIC_SOLE_FORGOTTEN, "a slot's line does not say that its newest page has taken the place of the other") \
	X(STATIC_RELEASE_HALF, "with a slot's newest page goes not the older one of its block") \
	X(STATIC_RELEASE_NEWER, "a page that was written since goes with the one that the origin has") \
	X(STATIC_RELEASE_EARLY, "pages of a static volume go before the origin is flushed") \
	X(STATIC_REFUSED_GOES, "a page of a static volume that the origin refused goes with the round") \
	X(STATIC_RELEASE_NO_FENCE, "a way is written again before it is durable that its page went") \
	X(STATIC_TORN_ACCEPTED, "a page that a cut has torn counts, its data unchecked") \
	X(STATIC_WINDOW_FORGOTTEN, "what a cut has torn is taken for damaged: its eras are not remembered") \
	X(STATIC_SETTLED_EARLY, "an era counts as settled in which writes still begin") \
	X(STATIC_STAMP_IGNORED, "an old tag is taken for that of the newest page") \
	X(STATIC_MERGE_LOSES, "a partial write to a static volume forgets the sectors cached before") \
	X(STATIC_READ_UNVERIFIED, "pages of a static volume are delivered whose checksum fails") \
	X(STATIC_PAST_CACHED, "a write goes past a static volume's page of its block") \
	X(STATIC_EMPTY_BELIEVED, "a slot is empty by one word, the other being anything") \
	X(STATIC_BAD_FORGOTTEN, "a page that destage found bad, and that reads well later, is never written") \
	X(STATIC_ERA_EACH_STEP, "an era ends with each round of destage, however short") \
	X(STATIC_ANEW_DIRTY, "a share that holds pages begins its eras anew") \
	X(STATIC_STARVED, "static volumes have their turn when no other has a request") \
	X(STATIC_CLEAN_IN_ROUND, "a static volume is clean while a round has what was dirty") \
	X(GROUP_ACK_SENT, "a group counts as durable when it is sent") \
	X(GROUP_NO_FUA, "a group is sent without FUA to a device that needs it") \
	X(GROUP_FLUSH_COVERS_SENT, "a flush counts for a write that had not ended when it was sent") \
	X(GROUP_FLUSH_ERROR_FORGOTTEN, "after a flush that failed, the next one stands for it") \
	X(GROUP_LOST_ELSEWHERE, "a flush that failed in a write of a record is nothing to the groups") \
	X(STREAM_SENT_TRUSTED, "a write in flight when a flush fails is durable by the next one") \
	X(STREAM_LOST_READ_LATE, "a flush that failed just before another was sent is nothing to that one") \
	X(STREAM_AHEAD_FORGOTTEN, "a chunk that was opened ahead is forgotten when its log had no chunk open") \
	X(STREAM_REMOVED_OPENS, "a chunk is opened for a log that was removed meanwhile") \
	X(STREAM_FORMAT_HALF, "after an error of the device a format writes again what had the error alone") \
	X(STREAM_COPY_IS_TWIN, "a group that failed and is there all the same forges what was appended again") \
	X(GROUP_BEFORE_OPEN, "a group is sent before the open line of its chunk is durable") \
	X(GROUP_BLOCK_SHARED, "a group begins in the block in which the one before ended") \
	X(GROUP_OVER_APPEND, "a group is closed between the two steps of an append to it") \
	X(GROUP_HALF_TAKEN, "recovery takes what has arrived of a torn group") \
	X(GROUP_GAP_ENDS_WALK, "a group that cannot be read hides those behind it in the chunk") \
	X(GROUP_ARRAY_OF_BEFORE, "the array of an earlier use of the chunk counts") \
	X(GROUP_CLOSED_EARLY, "a chunk's array is written before its last group is durable") \
	X(GROUP_ERROR_IGNORED, "a group whose write failed counts as durable") \
	X(GROUP_AGAIN_TWICE, "a group is appended again while the first one may count, too") \
	X(ARRAY_OVERTAKES_OPEN, "a chunk is opened again before the array of its last use is durable") \
	X(WITNESS_SILENT, "recovery does not say that a group is gone which another one names as durable") \
	X(PAGES_TAIL_TOO_LONG, "damage in a settled group of pages passes for a torn one") \
	X(PAGES_GAP_DATED_OLD, "what is lost before a group without pages counts as passed by the watermark") \
	X(PAGES_LISTED_UNSETTLED, "a round lists pages whose group a cut can take back") \
	X(PAGES_AGAIN_OLD_NUMBER, "a page that is appended again keeps the number that it had") \
	X(PAGES_TWO_IN_FLIGHT, "a group is sent while the one before it is not durable") \
	X(PAGES_ARRAY_ALONE, "of a closed chunk only the array counts, though a cut may have torn it") \
	X(PAGES_DEAD_AT_PUBLISH, "a page of a volume is dead before its successor is durable") \
	X(PAGES_READ_EARLY, "a read shows a page that a cut can take back") \
	X(PAGES_WATERMARK_EARLY, "the watermark passes a page whose successor a cut can take back") \
	X(PAGES_FLUSH_OF_SENT, "a flush waits for what was sent, not for what was appended") \
	X(PAGES_FLUSH_AGAIN, "while groups are appended again, a flush waits for those alone that are so by then") \
	X(PAGES_DETACH_EARLY, "a volume is detached before what was appended to it is durable") \
	X(PAGES_RESCUE_SETTLED, "when the device has failed, pages that are not settled never go to the origin") \
	X(PAGES_RESCUE_REFUSED, "when the device has failed, a page that the origin refused counts as written") \
	X(PAGES_RESCUE_COUNTED_LATE, "when the device has failed, a page that is published while a round lists its pages counts as listed") \
	X(PAGES_COPY_UNSETTLED, "a chunk is freed while damage of the copies of its pages passes for a torn group") \
	X(PAGES_RECORD_TOLD, "a change of a volume counts as made though the device that failed does not have it") \
	X(PAGES_FAILED_STAY, "the index shows a page whose group failed, where it never became durable") \
	X(GROUP_PERSIST_IGNORED, "a record that could not be written counts as written") \
	X(MAP_SYNC_NO_DATA, "a sync of mapped pages leaves their stores in the CPU's caches") \
	X(MAP_SYNC_ONE_FENCE, "a page is dirty before its stores are durable") \
	X(MAP_BIT_AFTER_ACK, "a sync is acknowledged before it is durable that the pages are dirty") \
	X(MAP_SYNC_TRUSTS_DIRTY, "a sync relies on a bit that another may not have made durable") \
	X(MAP_SYNC_LEAVES_WRITING, "a sync does not tell a write back that the page has changed") \
	X(MAP_WRITE_CLEARS_SYNCED, "a write back makes a page clean that was synced meanwhile") \
	X(MAP_CLEAR_NO_FENCE, "a page that is clean may be dirty again after a crash, when its file has moved on") \
	X(MAP_LIMIT_IGNORED, "a page counts as synced that lies behind the durable end of its file") \
	X(MAP_WORDS_UNCHECKED, "words of an earlier use of a frame count, and damaged ones") \
	X(MAP_STALE_WORDS, "a frame is shown with the words of its last use") \
	X(MAP_SHOWN_BEFORE_WORDS, "a frame's descriptor may be durable before its words are") \
	X(MAP_EPOCH_NOT_RAISED, "a frame is used again under its old epoch") \
	X(MAP_LINE_NO_FENCE, "a frame is handed out, or used again, before that is durable") \
	X(MAP_DROP_DIRTY, "a frame is dropped though its file lacks a page") \
	X(MAP_DROP_LEAVES_OPEN, "a sync of a frame that was dropped is acknowledged") \
	X(MAP_CLOSE_OVER_SYNC, "a frame is dropped over a page that was synced meanwhile") \
	X(MAP_CLOSE_NOT_UNDONE, "a frame that could not be dropped takes no sync any more") \
	X(MAP_DROP_NOT_RECORDED, "the media does not learn that a frame was dropped") \
	X(MAP_UNKNOWN_DROPPED, "pages whose word is damaged count as clean") \
	X(MAP_FILE_NO_FENCE, "both copies of a file's record may be torn by one cut") \
	X(MAP_FILE_FREED_EARLY, "a file's record is freed while frames refer to it") \
	X(MAP_CUT_NOT_RECORDED, "recovery does not know that a truncation was under way") \
	X(MAP_CUT_KEEPS_BITS, "pages behind the end of a truncated file stay dirty") \
	X(MAP_CUT_TAIL_STAYS, "what lay behind the end of a truncated file shows when it grows") \
	X(MAP_CUT_KEEPS_MADE, "a file that was cut is taken for shorter than it was made") \
	X(MAP_PROMISE_NO_FENCE, "a size is promised before that is durable") \
	X(MAP_SIZE_KEEPS_GROWS, "what others append to a file that has its size is cut")

enum fby_planted_id {
	FBY_BUG_NONE = 0,
#define FBY_PLANTED_ENUM(name, what) FBY_BUG_##name,
	FBY_PLANTED(FBY_PLANTED_ENUM)
#undef FBY_PLANTED_ENUM
	FBY_BUG_COUNT
};

extern u32 fby_planted; /* which one is active */
const char *fby_planted_name(u32 id);
const char *fby_planted_what(u32 id);

#define FBY_BUG(name) (fby_planted == FBY_BUG_##name)
#else
#define FBY_BUG(name) false
#endif

#endif

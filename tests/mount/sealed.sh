#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Goal: if someone has made files immutable or append-only outside the mount, or has mounted
# something over a part of the tree, a replay loses only the changes that touch them.  A read-only
# file system refuses the replay, and then the log keeps everything.  The same holds for a right
# that the replay lacks: EPERM alone does not mean that something is sealed.
# Method: a table of chattr +i and +a on directories and on files, and of a tmpfs over a directory.
# Each has a change of content, of a mode, a rename, a link, a removal and a new file in the log,
# and the tree as it was before them.  A directory that nobody touched has to be as the log says.
# Each old file is still there or is explained, and the report names what stays.  Then root without
# CAP_FOWNER replays changes in a sticky directory of another user.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../serve/lib.sh"
. "$(dirname "$0")/lib.sh"
need python3 chattr fsfreeze setpriv

kinds="plain dir-i dir-a file-i file-a over"
olds="content mode rename link remove"
make_disk ext4 64M
tree=$work/disk/tree
mkdir "$tree"
for kind in $kinds; do
	mkdir "$tree/$kind"
	for name in $olds; do echo "old $name" >"$tree/$kind/$name"; done
done
start_mount "$tree" --sync-interval 600s
copy_frozen "$work/image" "$work/before"
python3 - "$tree" $kinds <<'P'
import os, sys
def synced(path, text, flags=os.O_WRONLY):
    file = os.open(path, flags, 0o644)
    os.write(file, text)
    os.fsync(file)
    os.close(file)
for kind in sys.argv[2:]:
    at = f"{sys.argv[1]}/{kind}"
    synced(f"{at}/content", b"NEW content\n")
    os.chmod(f"{at}/mode", 0o600)
    os.rename(f"{at}/rename", f"{at}/renamed")
    os.link(f"{at}/link", f"{at}/linked")
    os.unlink(f"{at}/remove")
    synced(f"{at}/new", b"NEW new\n", os.O_WRONLY | os.O_CREAT)
P
kill_mount
umount_disk
cp "$work/before" "$work/image"
mount_image "$work/image" "$work/disk"

mount -o remount,ro "$work/disk"
code=0
"$FOREBAY" replay "$pool" "$tree" >"$work/refused" 2>&1 || code=$?
[ $code != 0 ] && grep -qi "read-only" "$work/refused" || fail "read-only: exit code $code: $(cat "$work/refused")"
mount -o remount,rw "$work/disk"

chattr +i "$tree/dir-i"
chattr +a "$tree/dir-a"
for name in $olds; do
	chattr +i "$tree/file-i/$name"
	chattr +a "$tree/file-a/$name"
done
mount -t tmpfs none "$tree/over"
echo another >"$tree/over/content"
at_end 'umount -l "$tree/over" 2>/dev/null; chattr -R -ia "$tree" 2>/dev/null || true'
"$FOREBAY" replay "$pool" "$tree" >"$work/replayed" 2>&1 || fail "one who seals a file stops the replay: $(cat "$work/replayed")"
umount "$tree/over"
chattr -R -i "$tree"
chattr -R -a "$tree"

python3 - "$tree" "$work/replayed" <<'P' || fail "$(printf '%s\n' "not all is there or told" "$(cat "$work/replayed")")"
import glob, os, sys
tree, wrong = sys.argv[1], []
def text(path):
    try:
        return open(path).read()
    except OSError:
        return None
after = {"content": "NEW content\n", "mode": "old mode\n", "renamed": "old rename\n", "link": "old link\n",
         "linked": "old link\n", "new": "NEW new\n"}
found = {name: text(name) for name in glob.glob(f"{tree}/.forebay-found/*")}
report = "".join(value for name, value in found.items() if name.endswith("-report"))
plain = {name: text(f"{tree}/plain/{name}") for name in os.listdir(f"{tree}/plain")}
if plain != after or os.stat(f"{tree}/plain/mode").st_mode & 0o777 != 0o600:
    wrong.append(f"plain: {plain}")
if "plain" in report:
    wrong.append("the report has something of plain")
lines = report.splitlines()
for line in lines:
    path, now, place = line.rpartition(": now ")
    if now and os.path.lexists(f"{tree}/{place}") == (f"{path}: nothing went to {place}" in lines):
        wrong.append(f"the report promises what is not so: {line}")
said = open(sys.argv[2]).read().splitlines()
refused = [line.split(": ")[1:3] for line in said if line.startswith("changed beside the mount: ")]
for path, what in refused:
    action = what.removeprefix("cannot ")
    if any(line.split("  ")[0] == action and path in line.split() for line in said):
        wrong.append(f"said to be done: {action} {path}")
if not refused:
    wrong.append("nothing is told")
told = 0
for kind in ["dir-i", "dir-a", "file-i", "file-a", "over"]:
    is_there = {name: text(f"{tree}/{kind}/{name}") for name in os.listdir(f"{tree}/{kind}")}
    for name, wanted in after.items():
        # The content is at the old name if the new name was not possible.
        if is_there.get(name) == wanted:
            continue
        told += 1
        if f"{kind}/" not in report and f"{kind}:" not in report:
            wrong.append(f"{kind}/{name}: {is_there.get(name)!r}, and the report has nothing of it")
        old = {"renamed": "rename"}.get(name, name)
        kept = [is_there.get(old)] + list(found.values())
        if wanted not in kept and not (name == "linked" and "old link\n" in is_there.values()):
            wrong.append(f"{kind}/{name}: its bytes are nowhere: {is_there}")
    for name in ["content", "mode", "rename", "link"]:
        if f"old {name}\n" not in list(is_there.values()) + list(found.values()) and is_there.get(name) != after.get(name):
            wrong.append(f"{kind}/{name}: what the tree had is lost")
print(f"{told} changes in dispute, {len(report.splitlines())} lines in the report")
if wrong:
    print("\n".join(wrong))
    sys.exit(1)
P
umount_disk

# In a sticky directory of another user only the owner and CAP_FOWNER may rename or remove the
# files.
make_disk ext4 64M
mkdir -m 1777 "$tree"
mkdir -m 1777 "$tree/theirs"
for name in rename remove; do echo "old $name" >"$tree/theirs/$name"; done
chown -R 1000:1000 "$tree/theirs"
start_mount "$tree" --sync-interval 600s
copy_frozen "$work/image" "$work/before"
mv "$tree/theirs/rename" "$tree/theirs/renamed"
rm "$tree/theirs/remove"
# This later change of the directory shows that no earlier one was under way.
python3 -c 'import os, sys; os.fsync(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY))' "$tree/theirs/later"
kill_mount
umount_disk
cp "$work/before" "$work/image"
mount_image "$work/image" "$work/disk"
for accept in '' --accept=under-way; do
	code=0
	# shellcheck disable=SC2086
	setpriv --bounding-set=-fowner "$FOREBAY" replay "$pool" "$tree" $accept >"$work/lacking" 2>&1 || code=$?
	[ $code != 0 ] && grep -q "not permitted" "$work/lacking" || fail "without CAP_FOWNER, ${accept:-plain}: exit code $code: $(cat "$work/lacking")"
done
"$FOREBAY" replay "$pool" "$tree" >"$work/whole" 2>&1 || fail "the log is gone: $(cat "$work/whole")"
[ "$(ls "$tree/theirs")" = $'later\nrenamed' ] || fail "after the replay: $(ls -R "$tree"): $(cat "$work/whole")"
umount_disk

# A directory with a project of its own (a quota) takes no file of another project, and a replay
# makes what the tree lacks elsewhere first.  The file is put into the directory all the same, and
# is of the project.  Xfs keeps projects on any kernel.
projects='projects were left out'
if ! command -v mkfs.xfs >/dev/null; then
	skip_part projects "mkfs.xfs is not installed"
elif make_disk xfs 320M; then
	mkdir -p "$tree/quota"
	chattr -p 7 +P "$tree/quota"
	echo other >"$tree/other"
	! python3 -c 'import os, sys; os.rename(*sys.argv[1:])' "$tree/other" "$tree/quota/other" 2>/dev/null ||
		fail "a directory of a project takes a file of none"
	echo old >"$tree/quota/old"
	start_mount "$tree" --sync-interval 600s
	copy_frozen "$work/image" "$work/before"
	mkdir "$tree/quota/sub"
	mv "$tree/quota/old" "$tree/quota/sub/moved"
	for name in quota/new quota/sub/inner; do
		echo "$name" >"$tree/$name"
		sync "$tree/$name"
	done
	kill_mount
	umount_disk
	cp "$work/before" "$work/image"
	mount_image "$work/image" "$work/disk"
	"$FOREBAY" replay "$pool" "$tree" >"$work/projects" 2>&1 || fail "a project: $(cat "$work/projects")"
	for name in quota/new quota/sub/inner; do
		[ "$(cat "$tree/$name")" = "$name" ] || fail "a project: $name: $(cat "$work/projects")"
	done
	[ "$(cat "$tree/quota/sub/moved")" = old ] || fail "a project: quota/sub/moved: $(cat "$work/projects")"
	of=$(lsattr -pd "$tree/quota/new" "$tree/quota/sub" "$tree/quota/sub/inner" "$tree/quota/sub/moved" | awk '{ print $1 }' | sort -u)
	[ "$of" = 7 ] || fail "a project: $(lsattr -pR "$tree")"
	[ ! -e "$tree/.forebay-found" ] || fail "a project: $(ls -R "$tree/.forebay-found")"
	umount_disk
	projects='and what is of a project stays so'
fi
say "immutable, append-only, mounted over, read-only: the rest is restored, and what stays is told; a right that lacks keeps the log; $projects"

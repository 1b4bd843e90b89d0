# SPDX-License-Identifier: MIT OR Apache-2.0
# [N [CHAINS]]: the same under SQLite and a maildir on `forebay mount`, with the pool on /dev/pmem0.
. "$here/part-cut.sh"
cut_script=guest-mount.sh

//go:build unix

package files

import (
	"io/fs"
	"syscall"
)

// owned returns the st_mode and the owner of a file.
func owned(info fs.FileInfo) (mode uint32, uid, gid int) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, 0
	}
	return uint32(st.Mode), int(st.Uid), int(st.Gid)
}

package files

import "io/fs"

// owned returns the st_mode that a file would have on Linux. Windows has no numeric owners.
func owned(info fs.FileInfo) (mode uint32, uid, gid int) {
	mode = uint32(info.Mode().Perm())
	switch {
	case info.Mode().IsRegular():
		mode |= modeFile
	case info.IsDir():
		mode |= modeDir
	case info.Mode()&fs.ModeSymlink != 0:
		mode |= modeSymlink
	}
	return mode, 0, 0
}

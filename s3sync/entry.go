package s3sync

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind tells files, directories and symbolic links apart. Nothing else is synchronised.
type Kind uint8

// The kinds of entries.
const (
	File Kind = iota + 1
	Dir
	Symlink
)

// String is the kind as people call it.
func (k Kind) String() string {
	switch k {
	case File:
		return "file"
	case Dir:
		return "directory"
	case Symlink:
		return "symbolic link"
	}
	return "unknown"
}

// Entry is one file, directory or symbolic link: as it is in a volume, and where it is in a bucket.
type Entry struct {
	Path    string // slash-separated, relative; the bytes of the file system
	Kind    Kind
	Mode    uint32 // permission bits, setuid, setgid and sticky: 0 to 07777
	UID     uint32
	GID     uint32
	ModTime Time
	Size    int64  // of a file, in bytes
	Target  string // of a symbolic link
	// Link is the path of the entry before this one that is the same file (a hard link), or "".
	Link   string
	Xattrs map[string]string // user.* attributes
	// Extents are where the data of a sparse file is; its object then holds these bytes only, one after the other. Nil otherwise.
	Extents []Extent

	// What the bucket has of it. An entry that was only seen in a volume has none.

	Key  string // if it is not the encoded path
	ETag string // without quotes; "" if there is no object
	CRC  uint64 // CRC-64/NVME of the object; meaningful if HasCRC
	// HasCRC is false for objects that others wrote.
	HasCRC bool

	// What only the machine knows on which the volume is: never in a bucket.

	Inode  uint64
	Change int64 // nanoseconds since 1970: when the inode changed last (ctime)
	nlink  uint64
	blocks int64 // of 512 bytes
	// foreign entries come from a list of objects; their modes and times must be asked for.
	foreign bool
	// blocked is a directory whose key has an object with content, which is no file and stays as it is.
	blocked bool
}

// setID are the bits of a mode for which a program runs as another user or group than who starts it.
const setID = unix.S_ISUID | unix.S_ISGID

// Extent is a part of a file that has data.
type Extent struct {
	Offset int64 `cbor:"1,keyasint"`
	Length int64 `cbor:"2,keyasint"`
}

// memory is about how many bytes the entry takes.
func (e *Entry) memory() int64 {
	n := 300 + len(e.Path) + len(e.Target) + len(e.Link) + len(e.Key) + len(e.ETag) + 16*len(e.Extents)
	for name, value := range e.Xattrs {
		n += 64 + len(name) + len(value)
	}
	return int64(n)
}

// order is the entry's place: its encoded path, with a slash at the end for directories.
func (e *Entry) order() string {
	if e.Kind == Dir {
		return EncodePath(e.Path) + "/"
	}
	return EncodePath(e.Path)
}

// key is the entry's key relative to the prefix.
func (e *Entry) key() string {
	switch {
	case e.Key != "":
		return e.Key
	case e.Extents != nil:
		return hidden("sparse", e.Path)
	}
	key := e.order()
	return key
}

// keyUnder is key, or a hidden one where prefix makes it too long.
func (e *Entry) keyUnder(prefix string) string {
	key := e.key()
	if len(prefix)+len(key) > maxKey {
		return hidden("long", e.Path)
	}
	return key
}

// hiddenUnder reports whether the object is where Harvest keeps its own, and no list of files shows it.
func (e *Entry) hiddenUnder(prefix string) bool {
	return strings.HasPrefix(e.keyUnder(prefix), Reserved+"/")
}

// unmarked reports whether an entry is a directory of which a list only shows that something is in it: nothing tells its mode or its times.
func (e *Entry) unmarked() bool { return e.Kind == Dir && e.foreign && e.ETag == "" }

// body is how many bytes the object of a file has.
func (e *Entry) body() int64 {
	if e.Extents == nil {
		return e.Size
	}
	var n int64
	for _, x := range e.Extents {
		n += x.Length
	}
	return n
}

// needsObject reports whether tools that know no manifest need an object to see the entry as it is. Directories that hold something and
// have the usual mode are seen through what they hold.
func (e *Entry) needsObject(empty bool) bool {
	return e.Kind != Dir || empty || e.Mode != 0o755
}

// same reports whether both are the same in all that a manifest keeps of the volume's side.
func (e *Entry) same(o *Entry) bool {
	return e.sameContent(o) && e.Mode == o.Mode && e.UID == o.UID && e.GID == o.GID && e.ModTime == o.ModTime && e.Link == o.Link && equalXattrs(e.Xattrs, o.Xattrs)
}

// sameRecord reports whether a manifest says the same of both.
func (e *Entry) sameRecord(o *Entry) bool {
	return e.same(o) && e.Key == o.Key && e.ETag == o.ETag && e.CRC == o.CRC && e.HasCRC == o.HasCRC && !o.foreign && slices.Equal(e.Extents, o.Extents)
}

// sameContent compares all but metadata, files by size and time of change only.
func (e *Entry) sameContent(o *Entry) bool {
	if e.Kind != o.Kind || e.Path != o.Path {
		return false
	}
	switch e.Kind {
	case File:
		return e.Size == o.Size && e.ModTime == o.ModTime
	case Symlink:
		return e.Target == o.Target
	}
	return true
}

// untouched reports whether the volume's inode is the one that state remembers, not changed since. It may have been restored without setID.
func (e *Entry) untouched(state *Entry) bool {
	return state.Inode != 0 && e.Inode == state.Inode && e.Change == state.Change && e.Kind == state.Kind && e.Size == state.Size &&
		e.ModTime == state.ModTime && (e.Mode == state.Mode || e.Mode == state.Mode&^setID) && e.Path == state.Path
}

func equalXattrs(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// parent is the path of the directory that holds path, "" for the root.
func parent(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i]
	}
	return ""
}

package tree

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Kind is the type of an entry. Files of other types are not synced.
type Kind uint8

// The kinds of entries.
const (
	File Kind = iota + 1
	Dir
	Symlink
)

// String returns the name of the kind.
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

// Limits of an entry.
const (
	MaxXattrs  = 256
	MaxExtents = 1 << 20
)

// Entry is a file, directory or symbolic link, with its state in a volume and its object in a
// bucket.
type Entry struct {
	Path    string // slash-separated, relative; the bytes of the file system
	Kind    Kind
	Mode    uint32 // permission bits, setuid, setgid and sticky: 0 to 07777
	UID     uint32
	GID     uint32
	ModTime Time
	Size    int64  // of a file, in bytes
	Target  string // of a symbolic link
	// Link is the path of an earlier entry that is the same file (a hard link), or "".
	Link   string
	Xattrs map[string]string // user.* attributes
	// Extents are the data ranges of a sparse file; its object then holds only these bytes,
	// concatenated. Otherwise it is nil.
	Extents []Extent

	// State in the bucket. An entry that was only seen in a volume has none.

	Key  string // if it is not the encoded path
	ETag string // without quotes; "" if there is no object
	CRC  uint64 // CRC-64/NVME of the object; meaningful if HasCRC
	// HasCRC is false for objects that other programs wrote.
	HasCRC bool

	// State of the machine that has the volume; it is never stored in a bucket.

	Inode  uint64
	Change int64 // nanoseconds since 1970: last change of the inode (ctime)
	// Unsent means that a sync is to store changed metadata by its manifest only: the bucket has the content.
	Unsent bool
	// Unset means that a sync is to set the metadata of a directory at its end.
	Unset bool
	// Contested means that a sync is to store the metadata of a directory over the bucket's, without an earlier record.
	Contested bool
	Nlink     uint64
	blocks    int64 // of 512 bytes
	// foreign entries come from a list of objects; their modes and times must be requested.
	Foreign bool
	// blocked is a directory whose key has an object with content. It is not a file and is left as
	// it is.
	Blocked bool
	// Unknown is the metadata that is only assumed. It gives way to that of any machine that has it.
	Unknown Facts
}

// SetID are the mode bits that make a program run as a user or group other than that of its caller.
const SetID = unix.S_ISUID | unix.S_ISGID

// Extent is a part of a file that has data.
type Extent struct {
	Offset int64 `cbor:"1,keyasint"`
	Length int64 `cbor:"2,keyasint"`
}

// Facts are kinds of metadata.
type Facts uint8

// The kinds of metadata.
const (
	FactMode Facts = 1 << iota
	FactOwner
	FactTime
	FactXattrs

	FactsOfStat = FactMode | FactOwner | FactTime
	AllFacts    = FactsOfStat | FactXattrs
)

// Undescribed reports whether an entry is of a list, and the headers of its object have more.
func (e *Entry) Undescribed() bool { return e.Unknown&FactMode != 0 && e.ETag != "" }

// Learn returns e with the facts that it lacks and from has, an earlier entry of the path.
func (e *Entry) Learn(from *Entry) *Entry {
	news := e.Unknown &^ from.Unknown
	if e.Kind == File && e.ETag != from.ETag {
		news &= FactXattrs // the headers of the new object have the rest
	}
	if news == 0 || e.Kind != from.Kind {
		return e
	}
	out := *e
	out.Unknown &^= news
	out.copyFacts(from, news)
	if news&FactMode != 0 {
		out.Foreign = false
	}
	if e.Kind == Dir && e.ETag == "" {
		out.Key, out.ETag, out.CRC, out.HasCRC = from.Key, from.ETag, from.CRC, from.HasCRC
	}
	return &out
}

func (e *Entry) copyFacts(from *Entry, which Facts) {
	if which&FactMode != 0 {
		e.Mode = from.Mode
	}
	if which&FactOwner != 0 {
		e.UID, e.GID = from.UID, from.GID
	}
	if which&FactTime != 0 {
		e.ModTime = from.ModTime
	}
	if which&FactXattrs != 0 {
		e.Xattrs = from.Xattrs
	}
}

// StillUnknown returns the facts that was lacks and in which e does not differ from it, so that nobody has set them.
func (e *Entry) StillUnknown(was *Entry) Facts {
	unknown := was.Unknown
	if e.Mode != was.Mode {
		unknown &^= FactMode
	}
	if e.UID != was.UID || e.GID != was.GID {
		unknown &^= FactOwner
	}
	if e.ModTime != was.ModTime {
		unknown &^= FactTime
	}
	if len(e.Xattrs) > 0 {
		unknown &^= FactXattrs
	}
	return unknown
}

// MemorySize returns the approximate memory use of the entry, in bytes.
func (e *Entry) MemorySize() int64 {
	n := 300 + len(e.Path) + len(e.Target) + len(e.Link) + len(e.Key) + len(e.ETag) + 16*len(e.Extents)
	for name, value := range e.Xattrs {
		n += 64 + len(name) + len(value)
	}
	return int64(n)
}

// Order returns the sort key of the entry: its encoded path, with a trailing slash for directories.
func (e *Entry) Order() string {
	if e.Kind == Dir {
		return EncodePath(e.Path) + "/"
	}
	return EncodePath(e.Path)
}

// key returns the entry's key relative to the prefix.
func (e *Entry) key() string {
	switch {
	case e.Key != "":
		return e.Key
	case e.Extents != nil:
		return Hidden("sparse", e.Path)
	}
	key := e.Order()
	return key
}

// KeyUnder is key, or a hidden key if prefix makes it too long.
func (e *Entry) KeyUnder(prefix string) string {
	key := e.key()
	if len(prefix)+len(key) > MaxKey {
		return Hidden("long", e.Path)
	}
	return key
}

// HiddenUnder reports whether the object is in Harvest's reserved directory, which lists of files
// omit.
func (e *Entry) HiddenUnder(prefix string) bool {
	return strings.HasPrefix(e.KeyUnder(prefix), Reserved+"/")
}

// Unmarked reports whether an entry is a directory that a list shows only through its content, so
// that its mode and times are unknown.
func (e *Entry) Unmarked() bool { return e.Kind == Dir && e.Foreign && e.ETag == "" }

// BodySize returns the size of a file's object.
func (e *Entry) BodySize() int64 {
	if e.Extents == nil {
		return e.Size
	}
	var n int64
	for _, x := range e.Extents {
		n += x.Length
	}
	return n
}

// NeedsObject reports whether tools that cannot read the manifest need an object to see the entry.
// A directory with entries and the usual mode needs none, since the keys of its entries show it.
func (e *Entry) NeedsObject(empty bool) bool {
	return e.Kind != Dir || empty || e.Mode != 0o755
}

// Same reports whether both have the same volume-side fields of a manifest.
func (e *Entry) Same(o *Entry) bool {
	return e.SameContent(o) && e.Mode == o.Mode && e.UID == o.UID && e.GID == o.GID && e.ModTime == o.ModTime &&
		e.Link == o.Link && maps.Equal(e.Xattrs, o.Xattrs)
}

// SameRecord reports whether both have the same record in a manifest.
func (e *Entry) SameRecord(o *Entry) bool {
	return e.Same(o) && e.Key == o.Key && e.ETag == o.ETag && e.CRC == o.CRC && e.HasCRC == o.HasCRC && !o.Foreign &&
		e.Unknown == o.Unknown && slices.Equal(e.Extents, o.Extents)
}

// SameContent ignores metadata. It compares files by size and mtime only.
func (e *Entry) SameContent(o *Entry) bool {
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

// Untouched reports whether the volume's inode is the one in state, unchanged since. It may have
// been restored without setID.
func (e *Entry) Untouched(state *Entry) bool {
	return state.Inode != 0 && e.Inode == state.Inode && e.Change == state.Change && e.Kind == state.Kind &&
		e.Size == state.Size &&
		e.ModTime == state.ModTime && (e.Mode == state.Mode || e.Mode == state.Mode&^SetID) && e.Path == state.Path
}

// Parent returns the directory of path, "" for the root.
func Parent(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i]
	}
	return ""
}

// TypeBits returns the type bits of st_mode.
func (e *Entry) TypeBits() uint32 {
	switch e.Kind {
	case Dir:
		return unix.S_IFDIR
	case Symlink:
		return unix.S_IFLNK
	}
	return unix.S_IFREG
}

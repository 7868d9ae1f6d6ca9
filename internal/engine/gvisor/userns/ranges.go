// Package userns gives each sandbox its own users if the server runs as root: a range of host ids that nothing else on
// this machine uses. Mounts with mapped owners translate the owners of files between the host and the sandbox.
package userns

import (
	"bufio"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Size is the number of ids in a range, of users and of groups.
const Size = 1 << 16

// pool is a part of the host's ids that is divided into ranges.
type pool struct {
	first, ranges int
	name          string   // prefix of the names of leases
	taken         []string // files with ids in use: passwd(5), group(5), subuid(5), subgid(5)
	maps          []string // the ids of this process's user namespace: uid_map and gid_map of user_namespaces(7)
}

// machine is the pool of this machine: ids that neither distributions, nor systemd, nor shadow's tools assign. They
// are positive as signed numbers of 32 bits.
var machine = pool{first: 0x7000_0000, ranges: 0xff0, name: "@harvest-users-",
	taken: []string{"/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"},
	maps:  []string{"/proc/self/uid_map", "/proc/self/gid_map"}}

// Lease is the exclusive right to the range that starts at First.
type Lease struct {
	First int
	// Hold is the lease itself. It lasts until all copies of this descriptor are closed, in all processes.
	Hold *os.File
}

// Take leases a range on this machine. A crash cannot leave a lease behind, because it is the address of a socket:
// the kernel gives it to one socket at a time, and frees it with that socket. Exhausted: all ranges are in use.
func Take() (*Lease, error) { return machine.take() }

func (p pool) take() (*Lease, error) {
	known, err := p.read()
	if err != nil {
		return nil, err
	}
	free := 0
	for _, i := range rand.Perm(p.ranges) { // servers that try ranges in the same order would collide at each one
		first := p.first + i*Size
		if !known.free(first) {
			continue
		}
		free++
		hold, err := listen(p.name + strconv.Itoa(first))
		if err == nil {
			return &Lease{First: first, Hold: hold}, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, errors.Wrapf(err, "lease a range of users")
		}
	}
	if free == 0 {
		return nil, p.noneFree()
	}
	err = errors.Newf(errors.Exhausted, "all %d ranges of users for sandboxes are in use on this machine", free)
	return nil, errors.Remedy(err, "destroy sandboxes that are not needed")
}

func (p pool) noneFree() error {
	err := errors.Newf(errors.Unsupported, "this machine has no free ids for the users of sandboxes: "+
		"%d to %d are assigned, or missing in the server's user namespace", p.first, p.first+p.ranges*Size-1)
	return errors.Remedy(err, "run the server outside of a user namespace, or free a part of these ids")
}

// listen returns a socket with an abstract address.
func listen(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ids are the ids that this machine has assigned, and those of this process's user namespace.
type ids struct {
	taken []span
	maps  [][]span
}

func (p pool) read() (known ids, err error) {
	for _, path := range p.taken {
		all, err := readSpans(path, ":", func(f []string) (span, bool) {
			if strings.HasPrefix(filepath.Base(path), "sub") {
				return spanOf(f, 1, 2)
			}
			return spanOf(f, 2, -1)
		})
		if err != nil && !errors.IsNotExist(err) {
			return known, err
		}
		known.taken = append(known.taken, all...)
	}
	for _, path := range p.maps {
		all, err := readSpans(path, "", func(f []string) (span, bool) { return spanOf(f, 0, 2) })
		if err != nil {
			return known, err
		}
		known.maps = append(known.maps, all)
	}
	return known, nil
}

// free reports whether the range from first belongs to no one, leases aside.
func (k ids) free(first int) bool {
	r := span{first, Size}
	return !r.touches(k.taken) && r.within(k.maps)
}

// free returns the first range that belongs to no one, leases aside.
func (p pool) free() (int, error) {
	known, err := p.read()
	if err != nil {
		return 0, err
	}
	for i := range p.ranges {
		if first := p.first + i*Size; known.free(first) {
			return first, nil
		}
	}
	return 0, p.noneFree()
}

// span is a sequence of ids.
type span struct{ first, n int }

func (s span) touches(all []span) bool {
	for _, o := range all {
		if s.first < o.first+o.n && o.first < s.first+s.n {
			return true
		}
	}
	return false
}

// within reports whether each map has all ids of s in one of its lines.
func (s span) within(maps [][]span) bool {
	for _, lines := range maps {
		inside := false
		for _, o := range lines {
			inside = inside || o.first <= s.first && s.first+s.n <= o.first+o.n
		}
		if !inside {
			return false
		}
	}
	return true
}

// spanOf returns the ids that the fields of a line name. Without a field for their number, it is one.
func spanOf(fields []string, first, number int) (span, bool) {
	s := span{n: 1}
	for field, to := range map[int]*int{first: &s.first, number: &s.n} {
		if field < 0 {
			continue
		}
		if field >= len(fields) {
			return s, false
		}
		n, err := strconv.ParseUint(strings.TrimSpace(fields[field]), 10, 32)
		if err != nil {
			return s, false
		}
		*to = int(n)
	}
	return s, true
}

// readSpans reads a file whose lines have fields between separators, or between spaces if the separator is empty.
// It ignores lines without ids, such as comments.
func readSpans(path, separator string, parse func(fields []string) (span, bool)) ([]span, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.Wrapf(err, "read the ids of this machine")
	}
	defer f.Close()
	var all []span
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if separator != "" {
			fields = strings.Split(lines.Text(), separator)
		}
		if s, ok := parse(fields); ok {
			all = append(all, s)
		}
	}
	return all, errors.Wrapf(lines.Err(), "read %s", path)
}

//go:build linux

package tarfs

import (
	"os"
	"path"
	"strings"
)

// ownLinks are the links in /proc to the process that follows them, with the same place of the first process.
var ownLinks = map[string]string{"self": "/proc/1", "thread-self": "/proc/1/task/1"}

// ofFirst returns a path that leads through /proc/self or /proc/thread-self as a path of the first process of this
// system. Other paths are returned unchanged. A process that works on files for others is of no interest to them,
// and two operations on one path can come from two processes. Among these paths are /proc/mounts, /proc/net and
// /dev/fd. follow applies to the last element.
func ofFirst(name string, follow bool) string {
	done, links := "/", 0
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			done = path.Dir(done)
			continue
		case done == "/proc" && ownLinks[part] != "":
			// Only the kernel can follow the links of a process, such as those to its open files.
			return strings.Join(append([]string{ownLinks[part]}, rest...), "/")
		}
		next := path.Join(done, part)
		target, err := os.Readlink(next)
		if err != nil || len(rest) == 0 && !follow {
			done = next // not a link, or missing: the operation itself reports it
			continue
		}
		if links++; links > maxLinks {
			break
		}
		if path.IsAbs(target) {
			done = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return name
}

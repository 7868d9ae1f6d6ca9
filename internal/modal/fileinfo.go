package modal

import (
	"archive/tar"
	"bufio"
	"context"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

func nowTime() time.Time { return time.Now() }

// fileInfo describes a file to clients.
type fileInfo struct {
	Name        string  `json:"name"`
	Path        string  `json:"path"`
	Type        string  `json:"type"`
	Size        int64   `json:"size"`
	Mode        uint32  `json:"mode"`
	Permissions string  `json:"permissions"` // four octal digits
	Owner       string  `json:"owner"`
	Group       string  `json:"group"`
	Modified    float64 `json:"modified_time"`
	Target      *string `json:"symlink_target"`
}

// names maps the user and group ids of a sandbox to names. It reads each table on first use.
type names struct {
	ctx           context.Context
	w             *fileWork
	users, groups map[int]string // nil before they are read
}

func (w *fileWork) names(ctx context.Context) *names { return &names{ctx: ctx, w: w} }

func (n *names) info(e tarfs.Entry, name string) fileInfo {
	i := fileInfo{
		Name: path.Base(name), Path: name, Type: "file", Size: e.Size, Mode: e.Mode,
		Permissions: fmt.Sprintf("%04o", e.Mode&0o7777),
		Owner:       n.of(&n.users, "/etc/passwd", e.UID), Group: n.of(&n.groups, "/etc/group", e.GID),
		Modified: seconds(e.Modified),
	}
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		i.Type = "directory"
	case unix.S_IFLNK:
		i.Type, i.Target = "symlink", &e.Link
	}
	return i
}

// of returns the name of id in a file of the sandbox, or the id itself if it has no name.
func (n *names) of(table *map[int]string, file string, id int) string {
	if *table == nil {
		*table = n.read(file)
	}
	if name := (*table)[id]; name != "" {
		return name
	}
	return strconv.Itoa(id)
}

// mostNames bounds the bytes read of a file that commands can write.
const mostNames = 1 << 20

// read parses lines of the form "name:x:number:…". Without the file, only root has a name.
func (n *names) read(file string) map[int]string {
	found := map[int]string{}
	stream, err := n.w.b.s.opts.Fleet.CopyOut(n.ctx, n.w.b.account, n.w.ref, file)
	if err != nil {
		return found
	}
	defer stream.Close()
	content := tar.NewReader(stream)
	if _, err := content.Next(); err != nil {
		return found
	}
	lines := bufio.NewScanner(io.LimitReader(content, mostNames))
	for lines.Scan() {
		parts := strings.Split(lines.Text(), ":")
		if len(parts) < 3 {
			continue
		}
		if id, err := strconv.Atoi(parts[2]); err == nil && found[id] == "" {
			found[id] = parts[0]
		}
	}
	return found
}

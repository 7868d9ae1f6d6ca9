package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"
)

// fullDisk is the free space below which tests can fail for want of it.
const fullDisk = 6 << 30

// disk measures the free space of a directory's file system, in bytes.
type disk struct {
	dir          string
	mu           sync.Mutex
	first, least uint64 // guarded by mu
}

func newDisk(dir string) *disk {
	d := &disk{dir: dir}
	d.first = d.measure()
	return d
}

// watch measures every few seconds until ctx ends.
func (d *disk) watch(ctx context.Context) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.measure()
		case <-ctx.Done():
			return
		}
	}
}

// measure returns the free space.
func (d *disk) measure() uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		return 0
	}
	free := st.Bavail * uint64(st.Bsize)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.least == 0 || free < d.least {
		d.least = free
	}
	return free
}

// String returns the report, with a warning if the disk was nearly full.
func (d *disk) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := fmt.Sprintf("%s: %s free at the start, %s at least", d.dir, units.BytesSize(float64(d.first)),
		units.BytesSize(float64(d.least)))
	if d.least < fullDisk {
		text += fmt.Sprintf("\nTests fail without space: free some, so that there is always %s.",
			units.BytesSize(fullDisk))
	}
	return text
}

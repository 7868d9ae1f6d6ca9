package app

import (
	"context"
	"fmt"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

const (
	// enoughSpace is the space for building the base image, and some room to work.
	enoughSpace = 4 << 30
	// noSpace is so little that writes are about to fail.
	noSpace = 64 << 20
	// enoughFiles and noFiles are the same for the number of files that a file system can still have.
	enoughFiles = 100_000
	noFiles     = 1000

	diskInterval = 10 * time.Second
)

// diskLevel is the type of the event that reports it.
type diskLevel string

// The levels, the best first.
const (
	diskOK   diskLevel = "disk.ok"
	diskLow  diskLevel = "disk.low"
	diskFull diskLevel = "disk.full"
)

// diskState is the free space of a file system, as in events.
type diskState struct {
	Free   uint64 `json:"free_bytes"`
	Files  uint64 `json:"free_files"` // 0 if Counts is not set
	Counts bool   `json:"-"`          // the number of files is limited
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// diskStateOf returns the free space for the user of this process.
func diskStateOf(dir string) (diskState, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return diskState{}, errors.Wrapf(err, "look at the disk")
	}
	s := diskState{Free: st.Bavail * uint64(st.Bsize), Counts: st.Files > 0}
	if s.Counts {
		s.Files = st.Ffree
	}
	return s, nil
}

// level returns the level of s, with limits that are raised by a part of 1/margin. Without a margin it is 0.
func (s diskState) level(margin uint64) diskLevel {
	below := func(space, files uint64) bool {
		if margin > 0 {
			space, files = space+space/margin, files+files/margin
		}
		return s.Free < space || s.Counts && s.Files < files
	}
	switch {
	case below(noSpace, noFiles):
		return diskFull
	case below(enoughSpace, enoughFiles):
		return diskLow
	}
	return diskOK
}

// text describes the free space.
func (s diskState) text() string {
	text := units.BytesSize(float64(s.Free)) + " free"
	if s.Counts && s.Files < enoughFiles {
		text += fmt.Sprintf(", and %d more files", s.Files)
	}
	return text
}

// diskWatch follows the free space of the data directory. It keeps the reserve for records, and reports to the operator
// before the disk is full.
type diskWatch struct {
	look    func() (diskState, error)
	reserve func() error
	publish func(context.Context, ...event.Draft) error

	last       diskLevel
	unreserved bool // the failure is in the log
}

// watchDisk starts to follow the data directory. The reserve exists when it returns, unless the disk is full.
func (a *App) watchDisk(ctx context.Context, reserve func() error) {
	w := &diskWatch{look: func() (diskState, error) { return diskStateOf(a.cfg.Data) }, reserve: reserve,
		publish: a.events.Publish, last: diskOK}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	w.check(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(diskInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.check(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
	a.then("the watch of the disk", func(context.Context) error {
		stop()
		<-done
		return nil
	})
}

// check renews the reserve, and publishes the level if it has changed. It returns to a better level only with some
// space more than its limit, so that a disk near a limit causes few events.
func (w *diskWatch) check(ctx context.Context) {
	err := w.reserve()
	if err != nil && !w.unreserved {
		logf.Warnf(ctx, "%v", err)
	}
	w.unreserved = err != nil
	s, err := w.look()
	if err != nil {
		logf.Warnf(ctx, "%v", err)
		return
	}
	const margin = 4
	level := s.level(0)
	if w.last == s.level(margin) {
		level = w.last
	}
	if level == w.last {
		return
	}
	if level != diskOK {
		s.Reason = "the disk of the data directory has " + s.text()
		s.Remedy = "remove sandboxes, images or volumes, or make the disk larger: while it is full, sandboxes cannot " +
			"write files, and output of commands is kept for a short time only"
		logf.Warnf(ctx, "%s", s.Reason)
	}
	err = w.publish(ctx, event.Draft{Stream: event.AccountStream(personal), Type: string(level), Data: s})
	if err != nil {
		logf.Warnf(ctx, "report the state of the disk: %v", err)
		return
	}
	w.last = level
}

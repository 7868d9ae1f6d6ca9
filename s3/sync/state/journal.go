package state

import (
	"bufio"
	"os"
	"sync"

	"github.com/fxamacker/cbor/v2"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/manifest"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// Journal records each file that a sync is about to store or to put into the volume, until the next
// state has it. If the process is killed in between, the next sync checks whether the step
// happened. Without the journal, it would take its own file for a new one, and bring it back after
// others have deleted it. A nil journal records nothing.
type Journal struct {
	path string

	mu   sync.Mutex
	file *os.File            // guarded by mu
	open map[string]*Journey // guarded by mu; by path; steps of jobs in progress, not in the state yet
}

// Journey is an entry with a step in progress.
type Journey struct {
	Step  step            `cbor:"1,keyasint"`
	Entry manifest.Record `cbor:"2,keyasint"`
}

// step is the progress of an entry.
type step uint8

const (
	Sending  step = iota + 1 // about to be stored in the bucket
	Fetching                 // about to get its name in the volume
	Arrived                  // it has its name
)

// Note records a step. The record survives the end of the process, but not a crash of the machine.
func (j *Journal) Note(s step, e *tree.Entry) error {
	if j == nil {
		return nil
	}
	n := &Journey{s, manifest.NewRecord(e, true)}
	raw, err := cbor.Marshal(n)
	if err != nil {
		return errors.Wrapf(err, "record a transfer under way")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		if j.file, err = os.OpenFile(j.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			return errors.Wrapf(err, "record a transfer under way")
		}
	}
	j.open[e.Path] = n
	_, err = j.file.Write(raw)
	return errors.Wrapf(err, "record a transfer under way")
}

// done notes that the next state has a path.
func (j *Journal) done(path string) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.open, path)
}

// compact drops records that the state has and has flushed.
func (j *Journal) compact() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return nil
	}
	next, err := os.OpenFile(j.path+".next", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return errors.Wrapf(err, "record a transfer under way")
	}
	b := bufio.NewWriter(next)
	enc := cbor.NewEncoder(b)
	for _, n := range j.open {
		err = errors.Join(err, enc.Encode(n))
	}
	if err = errors.Join(err, b.Flush(), os.Rename(j.path+".next", j.path)); err != nil {
		return errors.Join(errors.Wrapf(err, "record a transfer under way"), next.Close())
	}
	j.file.Close()
	j.file = next
	return nil
}

func (j *Journal) close() {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		j.file.Close()
	}
}

// readJournal returns the last step of each path, up to the first incomplete record.
func readJournal(path string) map[string]*Journey {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	last := map[string]*Journey{}
	_ = manifest.DecodeItems(bufio.NewReader(f), func(dec *cbor.Decoder) error {
		var n Journey
		if err := dec.Decode(&n); err != nil {
			return err
		}
		last[string(n.Entry.Path)] = &n
		return nil
	})
	return last
}

// AddBefore adds entries, in order, to the results of interrupted syncs. They replace earlier
// records of their paths.
func (s *State) AddBefore(all []*tree.Entry) error {
	if len(all) == 0 {
		return nil
	}
	return s.rewriteBefore(func(add func(*tree.Entry)) {
		for e, broken := range manifest.ReadFile(s.File(Before)) {
			if broken != nil {
				break
			}
			for len(all) > 0 && tree.CompareKeys(all[0].Order(), e.Order()) < 0 {
				add(all[0])
				all = all[1:]
			}
			if len(all) > 0 && all[0].Order() == e.Order() {
				continue
			}
			add(e)
		}
		for _, e := range all {
			add(e)
		}
	})
}

// NoteFetching records that a file is about to get its name.
func (j *Journal) NoteFetching(w *tree.Writer, e *tree.Entry) error {
	var st unix.Stat_t
	if j == nil {
		return nil
	}
	if err := unix.Fstat(int(w.Fd()), &st); err != nil {
		return tree.ExplainFile(err)
	}
	coming := *e
	coming.Inode = st.Ino
	return j.Note(Fetching, &coming)
}

// OpenJournal opens the journal of a state, and returns the steps that an interrupted sync left.
func (s *State) OpenJournal() map[string]*Journey {
	name := s.File(JournalFile)
	s.Journal = &Journal{path: name, open: map[string]*Journey{}}
	return readJournal(name)
}

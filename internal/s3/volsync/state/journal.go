package state

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"sync"

	"github.com/fxamacker/cbor/v2"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Journal records each file that a sync is about to store or to put into the volume, until the next
// state has it. If the process is killed in between, the next sync checks whether the step
// happened. Without the journal, it would take its own file for a new one, and bring it back after
// others have deleted it. A nil journal records nothing.
//
// It has a record of each transferred file, so it is made to cost little: see appended.
type Journal struct {
	path string

	mu   sync.Mutex
	out  appended        // guarded by mu
	buf  bytes.Buffer    // guarded by mu
	enc  *cbor.Encoder   // guarded by mu; to buf
	open map[string]span // guarded by mu; by path; records of jobs in progress, not in the state yet
}

// span is the place of a record in the file.
type span struct {
	at int64
	n  int
}

func newJournal(path string) *Journal {
	j := &Journal{path: path, open: map[string]span{}}
	j.enc = cbor.NewEncoder(&j.buf)
	return j
}

// Journey is an entry with a step in progress. NoteArrived depends on the places of its fields.
type Journey struct {
	Step  step            `cbor:"1,keyasint"`
	Entry manifest.Record `cbor:"2,keyasint"`
}

// step is the progress of an entry.
type step uint8

const (
	Sending  step = iota + 1 // about to be stored in the bucket
	Fetching                 // about to get its name in the volume; its Change is unknown
	Arrived                  // it has its name; the record of a file is that of Fetching, changed in place
)

// NoteSending records that an entry is about to be stored. The record survives the end of the
// process, but not a crash of the machine.
func (j *Journal) NoteSending(e *tree.Entry) error {
	if j == nil {
		return nil
	}
	return j.note(&Journey{Sending, manifest.NewRecord(e, true)})
}

// NoteFetching records that a file is about to get its name.
func (j *Journal) NoteFetching(w *tree.Writer, e *tree.Entry) error {
	if j == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(w.Fd()), &st); err != nil {
		return tree.ExplainFile(err)
	}
	n := Journey{Fetching, manifest.NewRecord(e, true)}
	n.Entry.Inode, n.Entry.Change = st.Ino, math.MaxInt64 // of the same length as any time
	return j.note(&n)
}

// NoteArrived records that the file of the last NoteFetching has its name.
func (j *Journal) NoteArrived(e *tree.Entry) error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	at, ok := j.open[e.Path]
	if !ok {
		return nil
	}
	change := binary.BigEndian.AppendUint64(nil, uint64(max(e.Change, 0)))
	err := j.out.patch(at.at+int64(at.n-len(change)), change) // the last field
	if err == nil {
		err = j.out.patch(at.at+2, []byte{byte(Arrived)}) // after the start of the map and the key of Step
	}
	return errors.Wrapf(err, "record a transfer under way")
}

// NoteMade records a new directory or hard link of the volume.
func (j *Journal) NoteMade(e *tree.Entry) error {
	if j == nil {
		return nil
	}
	return j.note(&Journey{Arrived, manifest.NewRecord(e, true)})
}

// note appends a record.
func (j *Journal) note(n *Journey) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.out.start(j.path); err != nil {
		return errors.Wrapf(err, "record a transfer under way")
	}
	j.buf.Reset()
	if err := j.enc.Encode(n); err != nil {
		return errors.Wrapf(err, "record a transfer under way")
	}
	at := span{j.out.size, j.buf.Len()}
	if err := j.out.add(j.buf.Bytes()); err != nil {
		return errors.Wrapf(err, "record a transfer under way")
	}
	j.open[string(n.Entry.Path)] = at
	return nil
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
	if j.out.file == nil {
		return nil
	}
	var next appended
	err := next.start(j.path + ".next")
	open := make(map[string]span, len(j.open))
	for path, from := range j.open {
		if err != nil {
			break
		}
		raw := make([]byte, from.n)
		if _, err = j.out.file.ReadAt(raw, from.at); err == nil {
			open[path] = span{next.size, from.n}
			err = next.add(raw)
		}
	}
	if err == nil {
		err = os.Rename(j.path+".next", j.path)
	}
	if err != nil {
		next.close()
		return errors.Wrapf(err, "record a transfer under way")
	}
	j.out.close()
	j.out, j.open = next, open
	return nil
}

func (j *Journal) close() {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.out.close()
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
		if n.Entry.Kind != 0 { // without one, an earlier version recorded an arrival
			last[string(n.Entry.Path)] = &n
		}
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

// OpenJournal opens the journal of a state, and returns the steps that an interrupted sync left.
func (s *State) OpenJournal() map[string]*Journey {
	name := s.File(JournalFile)
	s.Journal = newJournal(name)
	return readJournal(name)
}

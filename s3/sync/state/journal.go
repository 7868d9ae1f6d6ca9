package state

import (
	"bufio"
	"bytes"
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
//
// It has two records of each downloaded file, so it is made to cost little: see appended.
type Journal struct {
	path string

	mu   sync.Mutex
	out  appended           // guarded by mu
	buf  bytes.Buffer       // guarded by mu
	enc  *cbor.Encoder      // guarded by mu; to buf
	open map[string][2]span // guarded by mu; by path; records of jobs in progress, not in the state yet
}

// span is the place of a record in the file. Its n is 0 if there is none.
type span struct {
	at int64
	n  int
}

func newJournal(path string) *Journal {
	j := &Journal{path: path, open: map[string][2]span{}}
	j.enc = cbor.NewEncoder(&j.buf)
	return j
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
	Arrived                  // it has its name; the record follows the one of Fetching, and has the new fields only
)

// Note records that an entry is about to be stored. The record survives the end of the process, but
// not a crash of the machine.
func (j *Journal) Note(s step, e *tree.Entry) error {
	if j == nil {
		return nil
	}
	return j.note(e.Path, &Journey{s, manifest.NewRecord(e, true)})
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
	n.Entry.Inode = st.Ino
	return j.note(e.Path, &n)
}

// NoteArrived records that the file of the last NoteFetching has its name.
func (j *Journal) NoteArrived(e *tree.Entry) error {
	if j == nil {
		return nil
	}
	return j.note(e.Path, &arrival{Step: Arrived, Entry: arrivalEntry{[]byte(e.Path), e.Inode, e.Change}})
}

// arrival is a Journey with few fields.
type arrival struct {
	Step  step         `cbor:"1,keyasint"`
	Entry arrivalEntry `cbor:"2,keyasint"`
}

type arrivalEntry struct {
	Path   []byte `cbor:"1,keyasint"`
	Inode  uint64 `cbor:"20,keyasint"`
	Change int64  `cbor:"21,keyasint"`
}

// note appends a record.
func (j *Journal) note(path string, n any) error {
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
	all := [2]span{at}
	if _, ok := n.(*arrival); ok {
		all = [2]span{j.open[path][0], at}
	}
	j.open[path] = all
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
	open := make(map[string][2]span, len(j.open))
	for path, all := range j.open {
		for i, from := range all {
			if from.n == 0 || err != nil {
				continue
			}
			raw := make([]byte, from.n)
			if _, err = j.out.file.ReadAt(raw, from.at); err == nil {
				all[i].at = next.size
				err = next.add(raw)
			}
		}
		open[path] = all
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
		path := string(n.Entry.Path)
		if before := last[path]; n.Step == Arrived && n.Entry.Kind == 0 {
			if before != nil {
				before.Step, before.Entry.Inode, before.Entry.Change = Arrived, n.Entry.Inode, n.Entry.Change
			}
			return nil
		}
		last[path] = &n
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

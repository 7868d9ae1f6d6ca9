package sync

import (
	"bufio"
	"context"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/fxamacker/cbor/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
)

// journal records each file that a sync is about to store or to put into the volume, until the next
// state has it. If the process is killed in between, the next sync checks whether the step
// happened. Without the journal, it would take its own file for a new one, and bring it back after
// others have deleted it. A nil journal records nothing.
type journal struct {
	path string

	mu   sync.Mutex
	file *os.File            // guarded by mu
	open map[string]*journey // guarded by mu; by path; steps of jobs in progress, not in the state yet
}

// journey is an entry with a step in progress.
type journey struct {
	Step  step   `cbor:"1,keyasint"`
	Entry record `cbor:"2,keyasint"`
}

// step is the progress of an entry.
type step uint8

const (
	sending  step = iota + 1 // about to be stored in the bucket
	fetching                 // about to get its name in the volume
	fetched                  // it has its name
)

// note records a step. The record survives the end of the process, but not a crash of the machine.
func (j *journal) note(s step, e *tree.Entry) error {
	if j == nil {
		return nil
	}
	n := &journey{s, newRecord(e, true)}
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
func (j *journal) done(path string) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.open, path)
}

// compact drops records that the state has and has flushed.
func (j *journal) compact() error {
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

func (j *journal) close() {
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
func readJournal(path string) map[string]*journey {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	in := &itemReader{r: bufio.NewReader(f)}
	dec, err := decoder(in)
	if err != nil {
		return nil
	}
	last := map[string]*journey{}
	for {
		in.next()
		var n journey
		if dec.Decode(&n) != nil {
			return last
		}
		last[string(n.Entry.Path)] = &n
	}
}

// recover checks which steps in the journal of an interrupted sync happened, and adds them to the
// results of that sync.
func (r *run) recover(ctx context.Context, st *state) error {
	if st.temp || r.versions() {
		return nil
	}
	name := st.file(stateJournal)
	st.journal = &journal{path: name, open: map[string]*journey{}}
	noted := readJournal(name)
	if len(noted) == 0 {
		return nil
	}
	var mu sync.Mutex
	var all []*tree.Entry
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for _, n := range noted {
		g.Go(func() error {
			e, err := r.happened(asking, n)
			if err != nil || e == nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, e)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b *tree.Entry) int { return tree.CompareKeys(a.Order(), b.Order()) })
	if err := st.addBefore(all); err != nil {
		return err
	}
	return errors.Wrapf(os.Remove(name), "record a transfer under way")
}

// happened returns the entry of a step that was completed, as a state has it, or nil.
func (r *run) happened(ctx context.Context, n *journey) (*tree.Entry, error) {
	e, err := n.Entry.entry()
	if err != nil {
		return nil, nil // it is damaged
	}
	switch n.Step {
	case fetched:
		return e, nil
	case fetching:
		now, err := r.t.Lstat(e.Path)
		if err != nil || now == nil || now.Kind != e.Kind || now.Inode != e.Inode || now.Size != e.Size {
			return nil, nil
		}
		e.Change = 0 // unknown: the file is read before anything depends on it
		return e, nil
	case sending:
		now, err := r.b.stat(ctx, e.KeyUnder(r.b.prefix))
		if errors.KindOf(err) == errors.NotFound {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		size := e.BodySize()
		if e.Kind == tree.Symlink {
			size = int64(len(e.Target))
			now.Kind, now.Size = tree.Symlink, size
		}
		if !e.HasCRC || !now.HasCRC || now.CRC != e.CRC || now.Size != size {
			return nil, nil
		}
		e.ETag = now.ETag
		return e, nil
	}
	return nil, nil
}

// addBefore adds entries, in order, to the results of interrupted syncs. They replace earlier
// records of their paths.
func (s *state) addBefore(all []*tree.Entry) error {
	if len(all) == 0 {
		return nil
	}
	return s.rewriteBefore(func(add func(*tree.Entry)) {
		for e, broken := range readFile(s.file(stateBefore)) {
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

// noteSending records that an entry is about to be stored, if it is in the volume.
func (r *run) noteSending(e *tree.Entry) error {
	if e.Inode == 0 || e.Kind == tree.Dir || strings.HasPrefix(e.Key, tree.Reserved+"/packs") {
		return nil
	}
	return r.journal.note(sending, e)
}

// noteFetching records that a file is about to get its name.
func (j *journal) noteFetching(w *tree.Writer, e *tree.Entry) error {
	var st unix.Stat_t
	if j == nil {
		return nil
	}
	if err := unix.Fstat(int(w.Fd()), &st); err != nil {
		return tree.ExplainFile(err)
	}
	coming := *e
	coming.Inode = st.Ino
	return j.note(fetching, &coming)
}

package modalapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/logf"
)

// A queue has a file: JSON lines that record the puts and the gets. The file is rewritten when most of it
// concerns values that are gone.

// queueEnd is the suffix of these files.
const queueEnd = ".queue"

// waste is the least excess of a file over its values before it is rewritten.
const waste = 1 << 20

// queueNote is one line.
type queueNote struct {
	Part   []byte   `json:"p,omitempty"`
	Before uint64   `json:"n,omitempty"` // the id of the value before Values
	Values [][]byte `json:"v,omitempty"` // values put there
	Taken  int      `json:"t,omitempty"` // number of values taken from there
	Clear  bool     `json:"c,omitempty"` // all values were removed
	All    bool     `json:"a,omitempty"` // with Clear: of all partitions
	Key    string   `json:"k,omitempty"` // key of the put, as in keyed
	At     int64    `json:"m,omitempty"` // with Key: the time, in ms
	Made   int64    `json:"b,omitempty"` // on the first line: when the queue was made, in ms
	Env    string   `json:"e,omitempty"` // with Made: the environment, as a prefix of names
	Name   string   `json:"q,omitempty"` // with Made
}

// openQueues loads the queues of an earlier server. The time of their clients' last heartbeat is unknown, so it
// counts as now.
func (s *Server) openQueues() error {
	q := &s.queues
	q.dir, q.byID = s.opts.Dir, map[string]*queue{}
	files, err := filepath.Glob(filepath.Join(q.dir, "*"+queueEnd))
	if err != nil {
		return errors.Wrapf(err, "look for queues")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, path := range files {
		account, id, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), queueEnd), "~")
		data, err := os.ReadFile(path)
		if err != nil {
			return errors.Wrapf(err, "read the queue %s", id)
		}
		found := newQueue(path, strings.HasPrefix(id, queueID+looseMark))
		if name, err := nameOf(id, queueID, "Queue"); err == nil { // a file of an earlier version does not say it
			found.env, found.name = mainEnvName, name
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, len(data)+1)
		for lines.Scan() {
			var n queueNote
			if json.Unmarshal(lines.Bytes(), &n) == nil { // an incomplete line is from a killed server
				found.apply(n)
				found.noteKey(n)
			}
		}
		for _, values := range found.partitions {
			q.count(found, values, 1)
		}
		if err := found.rewrite(); err != nil { // also removes an incomplete last line
			return errors.Wrapf(err, "write the queue %s", id)
		}
		for _, k := range found.keys {
			s.once.keep(account+" "+strings.Replace(k.key, " ", " "+putOf(id)+" ", 1), &emptypb.Empty{},
				k.at.Add(replayed))
		}
		q.byID[account+" "+id] = found
	}
	return nil
}

// mostKeys is how many puts of a queue the next server can recognize. Clients retry for some seconds.
const mostKeys = 10_000

// keyBytes is the approximate size of a line with a key.
const keyBytes = 120

// noteKey remembers the key of a put and drops keys that are too old.
func (q *queue) noteKey(n queueNote) {
	if n.Key == "" {
		return
	}
	q.keys = append(q.keys, keyed{n.Key, time.UnixMilli(n.At)})
	old := max(0, len(q.keys)-mostKeys)
	for old < len(q.keys) && time.Since(q.keys[old].at) > replayed {
		old++
	}
	q.keys = q.keys[old:]
}

func newQueue(path string, loose bool) *queue {
	now := time.Now()
	return &queue{path: path, partitions: map[string][]queued1{}, heard: now, made: now, loose: loose,
		changed: make(chan struct{})}
}

// apply replays one line.
func (q *queue) apply(n queueNote) {
	name := string(n.Part)
	values := q.partitions[name]
	q.next = max(q.next, n.Before)
	if n.Made != 0 {
		q.made, q.env, q.name = time.UnixMilli(n.Made), n.Env, n.Name
	}
	for i, v := range n.Values {
		id := n.Before + uint64(i) + 1
		q.next = max(q.next, id)
		values = append(values, queued1{id, v})
	}
	values = values[min(max(n.Taken, 0), len(values)):]
	if n.Clear {
		values = nil
	}
	if q.partitions[name] = values; len(values) == 0 {
		delete(q.partitions, name)
	}
	if n.Clear && n.All {
		clear(q.partitions)
	}
}

// note adds a line to the file. On error it restores the old length.
func (q *queue) note(n queueNote) (err error) {
	line, err := json.Marshal(n)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(q.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(append(line, '\n')); err != nil {
		err = errors.Join(err, f.Truncate(q.written))
	} else {
		q.written += int64(len(line)) + 1
	}
	return errors.Join(err, f.Close())
}

// lost records removed values. Best effort: a failure must not withhold the values from their receiver. A later
// server would then deliver them again.
func (q *queue) lost(ctx context.Context, n queueNote) {
	var err error
	if q.written > 2*(q.bytes+keyBytes*int64(len(q.keys)))+waste {
		err = q.rewrite()
	} else {
		err = q.note(n)
	}
	if err != nil {
		logf.Errorf(ctx, "record the items taken from a queue: %v", err)
	}
}

// rewrite replaces the file with the current state.
func (q *queue) rewrite() error {
	var file bytes.Buffer
	lines := json.NewEncoder(&file)
	err := lines.Encode(queueNote{Before: q.next, Made: q.made.UnixMilli(), Env: q.env, Name: q.name})
	for _, k := range q.keys {
		err = errors.Join(err, lines.Encode(queueNote{Key: k.key, At: k.at.UnixMilli()}))
	}
	for name, values := range q.partitions {
		for _, v := range values {
			err = errors.Join(err, lines.Encode(queueNote{Part: []byte(name), Before: v.id - 1,
				Values: [][]byte{v.value}}))
		}
	}
	if err == nil {
		err = atomicfile.Write(q.path, file.Bytes(), 0o600)
	}
	if err == nil {
		q.written = int64(file.Len())
	}
	return err
}

// sweep drops unnamed queues whose clients are gone.
func (q *queues) sweep(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, old := range q.byID {
		if old.loose && time.Since(old.heard) > ephemeral {
			q.drop(ctx, key)
		}
	}
}

// Package migrate moves the state of Modal's protocol from the files of an earlier version to a store of records.
package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/anonymous"
	"github.com/RelevanceAI/harvest/internal/modal/environments"
	"github.com/RelevanceAI/harvest/internal/modal/queues"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// Files moves the files in dir. It removes a file once its records are stored, so that a start after an interruption
// continues.
func Files(ctx context.Context, dir string, store records.Store) error {
	for _, kind := range []struct {
		pattern string
		convert func(path string, data []byte) ([]records.Record, error)
	}{
		{"apps.json", apps}, {"environments.json", environs}, {"*.queue", queue}, {"*.secret", anonymousSecret},
		{"*.journal", journal}, {"*.base", view},
	} {
		paths, err := filepath.Glob(filepath.Join(dir, kind.pattern))
		if err != nil {
			return errors.Wrapf(err, "look for files of an earlier version")
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			var all []records.Record
			if err == nil {
				all, err = kind.convert(path, data)
			}
			if err == nil {
				err = store.Put(ctx, all...)
			}
			if err == nil {
				err = os.Remove(path)
			}
			if err != nil {
				return errors.Remedy(errors.Wrapf(err, "move %s to the database", path),
					"move the file away if it is damaged; its state is then lost")
			}
		}
	}
	return nil
}

// base returns the name of a file without its suffix.
func base(path string) string {
	name := filepath.Base(path)
	return strings.TrimSuffix(name, filepath.Ext(name))
}

// owned returns the ID of an object whose file is named ACCOUNT~ID.
func owned(path string) records.ID {
	account, id, _ := strings.Cut(base(path), "~")
	return records.ID{Account: account, ID: id}
}

// apps reads a map of apps by account and ID. An app with "deleted" was the ID of a deleted image.
func apps(_ string, data []byte) (all []records.Record, err error) {
	var byID map[string]json.RawMessage
	if err := json.Unmarshal(data, &byID); err != nil {
		return nil, err
	}
	for key, text := range byID {
		account, id, _ := strings.Cut(key, " ")
		r := records.Record{Kind: records.App, ID: records.ID{Account: account, ID: id}, Data: text}
		var app struct{ Deleted bool }
		if err := json.Unmarshal(text, &app); err != nil {
			return nil, err
		}
		if app.Deleted {
			r.Kind, r.Data = records.DeletedImage, nil
		}
		all = append(all, r)
	}
	return all, nil
}

// environs reads a map of environments by account and name.
func environs(_ string, data []byte) (all []records.Record, err error) {
	var byName map[string]map[string]struct {
		Prefix  string    `json:"prefix"`
		Created time.Time `json:"created_at"`
	}
	if err := json.Unmarshal(data, &byName); err != nil {
		return nil, err
	}
	for account, envs := range byName {
		for name, e := range envs {
			text, err := json.Marshal(environments.Record{Name: name, Created: e.Created})
			if err != nil {
				return nil, err
			}
			all = append(all, records.Record{Kind: records.Environment, ID: records.ID{Account: account, ID: e.Prefix},
				Data: text})
		}
	}
	return all, nil
}

// anonymousSecret reads a sealed secret, whose mtime is the time of its last use.
func anonymousSecret(path string, data []byte) ([]records.Record, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	return []records.Record{{Kind: records.Secret, ID: owned(path), Data: anonymous.Data(info.ModTime(), data)}}, nil
}

// journal reads lines of JSON. A server that was killed may have left an incomplete last line.
func journal(path string, data []byte) (all []records.Record, err error) {
	for line := range bytes.Lines(data) {
		if json.Valid(line) {
			all = append(all, records.Record{Kind: records.Journal, ID: records.ID{ID: base(path)},
				Number: int64(len(all)), Data: bytes.TrimSpace(line)})
		}
	}
	return all, nil
}

// view reads the last common state of a volume and a copy.
func view(path string, data []byte) ([]records.Record, error) {
	return []records.Record{{Kind: records.View, ID: records.ID{ID: base(path)}, Data: data}}, nil
}

// queueLine is a line of a queue's file: a put, a removal, or the description of the queue.
type queueLine struct {
	Part   []byte   `json:"p,omitempty"`
	Before uint64   `json:"n,omitempty"` // the number of the value before Values
	Values [][]byte `json:"v,omitempty"` // values put there
	Taken  int      `json:"t,omitempty"` // number of values taken from there
	Clear  bool     `json:"c,omitempty"` // all values were removed
	All    bool     `json:"a,omitempty"` // with Clear: of all partitions
	Key    string   `json:"k,omitempty"` // idempotency key of the put
	At     int64    `json:"m,omitempty"` // with Key: the time, in ms
	Made   int64    `json:"b,omitempty"` // when the queue was made, in ms
	Env    string   `json:"e,omitempty"` // with Made: the environment, as a prefix of names
	Name   string   `json:"q,omitempty"` // with Made
}

type queuedValue struct {
	number uint64
	data   []byte
}

// queue replays the lines of a queue's file.
func queue(path string, data []byte) (all []records.Record, err error) {
	id, made, parts := owned(path), queues.Record{Created: time.Now()}, map[string][]queuedValue{}
	add := func(kind records.Kind, number uint64, data []byte) {
		all = append(all, records.Record{Kind: kind, ID: id, Number: int64(number), Data: data})
	}
	for text := range bytes.Lines(data) {
		var l queueLine
		if json.Unmarshal(text, &l) != nil { // an incomplete line is from a killed server
			continue
		}
		made.Last = max(made.Last, l.Before)
		if l.Made != 0 {
			made.Created, made.Environment, made.Name = time.UnixMilli(l.Made), l.Env, l.Name
		}
		if l.Key != "" {
			key, err := json.Marshal(queues.Key{Key: l.Key, At: time.UnixMilli(l.At)})
			if err != nil {
				return nil, err
			}
			add(records.QueueKey, uint64(len(all)), key)
		}
		part := string(l.Part)
		for i, v := range l.Values {
			number := l.Before + uint64(i) + 1
			made.Last = max(made.Last, number)
			parts[part] = append(parts[part], queuedValue{number, v})
		}
		parts[part] = parts[part][min(max(l.Taken, 0), len(parts[part])):]
		if l.Clear {
			delete(parts, part)
		}
		if l.Clear && l.All {
			clear(parts)
		}
	}
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		for _, v := range parts[part] {
			add(records.QueueValue, v.number, queues.ValueData([]byte(part), v.data))
		}
	}
	text, err := json.Marshal(made)
	if err != nil {
		return nil, err
	}
	add(records.Queue, 0, text)
	return all, nil
}

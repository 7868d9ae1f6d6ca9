package modalapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/secret"
)

// looseLife is how long a secret without a name, which clients make for a request, is kept after its last use.
// No sandbox created with it lives longer.
const looseLife = 24 * time.Hour

// mostLoose bounds the number of secrets without a name.
const mostLoose = 10000

// looseEnd is the suffix of their sealed files. A file's mtime is the time of last use, with a resolution of
// looseTouch.
const (
	looseEnd   = ".secret"
	looseTouch = time.Hour
)

// loose holds the secrets without a name.
type loose struct {
	dir string
	key []byte // seals the files

	mu   sync.Mutex
	byID map[string]*looseSecret // guarded by mu; by account and ID
}

type looseSecret struct {
	pairs   secret.Pairs
	path    string
	used    time.Time // the file's mtime
	release func()    // stops the redaction of the values in logs
}

// openLoose loads the secrets of an earlier server. It removes unreadable files, because the key that sealed
// them is gone.
func (s *Server) openLoose() error {
	l := &s.loose
	l.dir, l.key, l.byID = s.opts.Dir, []byte(s.seal("secrets without a name")), map[string]*looseSecret{}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return errors.Wrapf(err, "make the directory of Modal's protocol")
	}
	files, err := filepath.Glob(filepath.Join(l.dir, "*"+looseEnd))
	if err != nil {
		return errors.Wrapf(err, "look for secrets without a name")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, path := range files {
		account, id, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), looseEnd), "~")
		kept, err := l.read(path)
		if err != nil {
			logf.Warnf(s.ctx, "forget the secret %s of %s: %v", id, account, err)
			_ = os.Remove(path) // best effort: the next start retries
			continue
		}
		l.byID[account+" "+id] = kept
	}
	l.sweepLocked()
	return nil
}

func (l *loose) read(path string) (*looseSecret, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	plain, err := unseal(bytes.NewReader(data), l.key)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(plain)
	if err != nil {
		return nil, err
	}
	var pairs map[string]string
	if err := json.Unmarshal(text, &pairs); err != nil {
		return nil, errors.Newf(errors.Invalid, "it is not whole") // the cause might quote the content
	}
	return newLoose(pairs, path, info.ModTime()), nil
}

func newLoose(pairs secret.Pairs, path string, used time.Time) *looseSecret {
	return &looseSecret{pairs: pairs, path: path, used: used,
		release: logf.Redact(slices.Collect(maps.Values(pairs))...)}
}

// add stores a secret and returns its ID.
func (l *loose) add(ctx context.Context, account string, pairs secret.Pairs) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked()
	if len(l.byID) >= mostLoose {
		return "", errors.Remedy(errors.Newf(errors.Exhausted, "there are %d secrets without a name", mostLoose),
			"Give secrets that are used often a name")
	}
	id := secretID + looseMark + rand.Text()
	kept := newLoose(maps.Clone(pairs), filepath.Join(l.dir, account+"~"+id+looseEnd), time.Now())
	if err := l.write(kept); err != nil { // it still works until this server ends
		logf.Errorf(ctx, "keep the secret %s: %v", id, err)
	}
	l.byID[account+" "+id] = kept
	return id, nil
}

func (l *loose) write(kept *looseSecret) error {
	text, err := json.Marshal(map[string]string(kept.pairs)) // the type itself hides its values
	if err != nil {
		return err
	}
	var file bytes.Buffer
	if err := seal(&file, l.key, bytes.NewReader(text)); err != nil {
		return err
	}
	return atomicfile.Write(kept.path, file.Bytes(), 0o600)
}

// get returns the values of a secret and extends its life.
func (l *loose) get(account, id string) (secret.Pairs, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.byID[account+" "+id]
	if kept == nil || time.Since(kept.used) > looseLife+looseTouch {
		return nil, false
	}
	if now := time.Now(); now.Sub(kept.used) > looseTouch {
		kept.used = now
		_ = os.Chtimes(kept.path, now, now) // best effort: a later server may drop it early
	}
	return kept.pairs, true
}

func (l *loose) drop(account, id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropLocked(account + " " + id)
}

func (l *loose) dropLocked(key string) bool {
	kept := l.byID[key]
	if kept == nil {
		return false
	}
	kept.release()
	_ = os.Remove(kept.path) // best effort: a later server removes it once it has expired
	delete(l.byID, key)
	return true
}

// sweep drops secrets that were not used within looseLife.
func (l *loose) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked()
}

func (l *loose) sweepLocked() {
	for key, kept := range l.byID {
		if time.Since(kept.used) > looseLife+looseTouch {
			l.dropLocked(key)
		}
	}
}

package files

import (
	"context"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// etag is the entity tag of a file, "" if the engine reports no version.
func etag(e tarfs.Entry) string {
	if e.Version == "" {
		return ""
	}
	return `"` + e.Version + `"`
}

// precondition checks If-Match and If-None-Match (RFC 9110, 13.1) against the result of a stat. Its error has the
// status 412.
func precondition(r *http.Request, e tarfs.Entry, err error) error {
	match, none := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	if len(match) == 0 && len(none) == 0 || err != nil && errors.KindOf(err) != errors.NotFound {
		return nil
	}
	exists, name := err == nil, r.URL.Query().Get("path")
	switch {
	case len(match) > 0 && !exists:
		err := errors.Remedy(errors.Newf(errors.Conflict, "%.200q: does not exist", name),
			"write it as a new file, without an ETag")
		return edge.WithStatus(err, http.StatusPreconditionFailed)
	case len(match) > 0 && !matches(match, etag(e), false):
		err := errors.Remedy(errors.Newf(errors.Conflict, "%.200q: has changed; its ETag is %s", name, etag(e)),
			"read the file again, and use its new ETag")
		return edge.WithStatus(err, http.StatusPreconditionFailed)
	case len(none) > 0 && exists && matches(none, etag(e), true):
		err := errors.Remedy(errors.Newf(errors.Conflict, "%.200q: already exists", name),
			"give its ETag to replace the file")
		return edge.WithStatus(err, http.StatusPreconditionFailed)
	}
	return nil
}

// matches reports whether the lists of entity tags in values name tag. Weak tags match only a weak comparison.
func matches(values []string, tag string, weak bool) bool {
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") { // no tag of this server contains a comma
			one = strings.TrimSpace(one)
			if weak {
				one = strings.TrimPrefix(one, "W/")
			}
			if one == "*" || one == tag && tag != "" {
				return true
			}
		}
	}
	return false
}

// checkVersion checks the request's conditions against the current file. Call it in changeFile.
func (s *Service) checkVersion(r *http.Request, name string, follow bool) error {
	if len(r.Header.Values("If-Match")) == 0 && len(r.Header.Values("If-None-Match")) == 0 {
		return nil
	}
	e, err := s.stat(r, name, follow)
	if failed := precondition(r, e, err); failed != nil {
		return failed
	}
	if err != nil && errors.KindOf(err) != errors.NotFound {
		return err
	}
	return nil
}

// changeFile runs change while no other request changes the same file, so that one of two conditional writes fails.
// Commands in the sandbox do not wait for it.
func (s *Service) changeFile(r *http.Request, name string, change func() error) error {
	found, err := s.Fleet.Get(r.Context(), edge.Account(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	unlock, err := s.changing.lock(r.Context(), found.ID+":"+path.Clean(name))
	if err != nil {
		return err
	}
	defer unlock()
	return change()
}

// fileLocks are locks by name, which exist while a request holds or awaits them.
type fileLocks struct {
	mu   sync.Mutex
	held map[string]*fileLock // guarded by mu
}

type fileLock struct {
	free  chan struct{} // has one element while the lock is free
	users int           // guarded by fileLocks.mu
}

// lock waits for a lock, or for the end of ctx.
func (l *fileLocks) lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*fileLock{}
	}
	one := l.held[name]
	if one == nil {
		one = &fileLock{free: make(chan struct{}, 1)}
		one.free <- struct{}{}
		l.held[name] = one
	}
	one.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.held, name)
		}
	}
	select {
	case <-one.free:
		return func() { one.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, errors.Wrapf(ctx.Err(), "wait for another change of the file")
	}
}

// Package uses tracks the users of objects, which may be deleted only when they are unused.
package uses

import (
	"slices"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Set tracks the users of named objects within this process. The zero value is ready to use.
type Set struct {
	mu     sync.Mutex
	by     map[string][]string // guarded by mu
	barred map[string]bool     // guarded by mu; names that are being deleted
}

// Take registers who as a user of name until release is called, which is idempotent. Conflict if name is being
// deleted.
func (u *Set) Take(name, who string) (release func(), err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.barred[name] {
		return nil, errors.Newf(errors.Conflict, "%s is being deleted", name)
	}
	if u.by == nil {
		u.by = map[string][]string{}
	}
	u.by[name] = append(u.by[name], who)
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		users := u.by[name]
		if i := slices.Index(users, who); i >= 0 {
			users = slices.Delete(users, i, i+1)
		}
		if u.by[name] = users; len(users) == 0 {
			delete(u.by, name)
		}
	}), nil
}

// Bar makes Take fail for name until unbar is called; what describes it in errors. Conflict if name has users
// or is barred.
func (u *Set) Bar(name, what string) (unbar func(), err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if users := u.by[name]; len(users) > 0 {
		return nil, InUse(what, users...)
	}
	if u.barred[name] {
		return nil, errors.Newf(errors.Conflict, "%s is being deleted", what)
	}
	if u.barred == nil {
		u.barred = map[string]bool{}
	}
	u.barred[name] = true
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.barred, name)
	}, nil
}

// InUse returns the Conflict of an object that has users.
func InUse(what string, users ...string) error {
	return errors.Remedy(errors.Newf(errors.Conflict, "%s is in use by %s", what, strings.Join(users, ", ")),
		"end its users first")
}

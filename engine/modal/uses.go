package modal

import (
	"slices"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/errors"
)

// uses are who of this process needs what, by its name. The zero value is ready.
type uses struct {
	mu sync.Mutex
	by map[string][]string // guarded by mu
}

// take notes that who needs name, until release is called, which may be repeated.
func (u *uses) take(name, who string) (release func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
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
	})
}

// check returns Conflict if somebody needs name, which what describes.
func (u *uses) check(name, what string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if users := u.by[name]; len(users) > 0 {
		return inUse(what, users...)
	}
	return nil
}

func inUse(what string, users ...string) error {
	return errors.Remedy(errors.Newf(errors.Conflict, "%s is in use by %s", what, strings.Join(users, ", ")), "end what uses it first")
}

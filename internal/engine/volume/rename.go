package volume

import (
	"context"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// Renamer is implemented by Providers that can rename volumes.
type Renamer interface {
	// Rename gives a volume another name. NotFound if it does not exist; Conflict if it is in use or the new name is
	// taken; Invalid if the new name is not valid.
	Rename(ctx context.Context, old, name string) error
}

// Rename implements Renamer.
func (l *Local) Rename(ctx context.Context, old, name string) error {
	if err := errors.Join(CheckStored(old), CheckStored(name)); err != nil {
		return err
	}
	l.creating.Lock()
	defer l.creating.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.find(old); err != nil {
		return err
	}
	if users := l.uses[old]; len(users) > 0 {
		err := errors.Newf(errors.Conflict, "volume %q: in use by %s", shown(old), users[0])
		return errors.Remedy(err, "end the use first")
	}
	if _, err := l.root.Lstat(name); err == nil {
		return errors.Newf(errors.Conflict, "volume %q: already exists", shown(name))
	}
	if err := l.root.Rename(old, name); err != nil {
		return tarfs.Explain(err, shown(old))
	}
	if err := syncDir(l.root, "."); err != nil {
		return tarfs.Explain(err, shown(name))
	}
	logf.Infof(ctx, "volume %s renamed to %s", old, name)
	return nil
}

// Rename implements Renamer. Unsupported if the Provider of all owners is no Renamer.
func (o owned) Rename(ctx context.Context, old, name string) error {
	from, err := o.stored(old)
	if err != nil {
		return err
	}
	to, err := o.stored(name)
	if err != nil {
		return err
	}
	r, ok := o.all.(Renamer)
	if !ok {
		return errors.Newf(errors.Unsupported, "volumes cannot be renamed here")
	}
	return r.Rename(ctx, from, to)
}

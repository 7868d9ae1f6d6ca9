package volume

import (
	"context"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// ownerMark separates owner and volume name where both are stored as one. It cannot occur in names.
const ownerMark = "~"

// Stored returns the name under which a Provider stores the owner's volume. The owner "" is the
// account that existed before there were others.
func Stored(owner, name string) string {
	if owner == "" {
		return name
	}
	return owner + ownerMark + name
}

// shown returns the owner's name for a stored name.
func shown(stored string) string { return stored[strings.Index(stored, ownerMark)+1:] }

// ownerOf returns the owner of a stored name.
func ownerOf(stored string) string {
	owner, _, marked := strings.Cut(stored, ownerMark)
	if !marked {
		return ""
	}
	return owner
}

// CheckStored returns Invalid if name is not a possible result of Stored.
func CheckStored(name string) error {
	if owner, rest, owned := strings.Cut(name, ownerMark); owned && CheckName(owner) == nil {
		return CheckName(rest)
	}
	return CheckName(name)
}

// Of returns the owner's volumes in p, which stores those of all owners. Other owners' volumes are
// invisible.
func Of(p Provider, owner string) Provider { return owned{p, owner} }

type owned struct {
	all   Provider
	owner string
}

// ownedVolume is a volume with the name that its owner uses.
type ownedVolume struct {
	Volume
	name string
}

func (v ownedVolume) Name() string { return v.name }

// Dir implements Directory.
func (v ownedVolume) Dir() string {
	if d, ok := v.Volume.(Directory); ok {
		return d.Dir()
	}
	return ""
}

// Notes implements Directory.
func (v ownedVolume) Notes() string {
	if d, ok := v.Volume.(Directory); ok {
		return d.Notes()
	}
	return ""
}

// Use implements Directory.
func (v ownedVolume) Use(who string) (func(), error) {
	if d, ok := v.Volume.(Directory); ok {
		return d.Use(who)
	}
	return func() {}, nil
}

// Admit implements Limited.
func (v ownedVolume) Admit(ctx context.Context, files *os.Root) (Room, error) {
	return Admit(ctx, v.Volume, files)
}

// stored returns the name in o.all. It refuses names that could refer to another owner's volume.
func (o owned) stored(name string) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	return Stored(o.owner, name), nil
}

func (o owned) Create(ctx context.Context, name string) (Volume, error) {
	return o.named(ctx, name, o.all.Create)
}

func (o owned) Open(ctx context.Context, name string) (Volume, error) {
	return o.named(ctx, name, o.all.Open)
}

func (o owned) named(ctx context.Context, name string,
	get func(context.Context, string) (Volume, error)) (Volume, error) {
	stored, err := o.stored(name)
	if err != nil {
		return nil, err
	}
	v, err := get(ctx, stored)
	if err != nil {
		return nil, err
	}
	return ownedVolume{v, name}, nil
}

func (o owned) List(ctx context.Context) ([]Info, error) {
	all, err := o.all.List(ctx)
	if err != nil {
		return nil, err
	}
	mine := []Info{}
	for _, v := range all {
		if ownerOf(v.Name) == o.owner {
			v.Name = shown(v.Name)
			mine = append(mine, v)
		}
	}
	return mine, nil
}

func (o owned) Delete(ctx context.Context, name string) error {
	stored, err := o.stored(name)
	if err != nil {
		return err
	}
	return errors.Wrapf(o.all.Delete(ctx, stored), "of %s", o.owner)
}

package image

import (
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Of returns the images in b, which holds those of all owners, that are visible to owner: its own,
// and Harvest's, which are shared since they hold no user's data. Those of other owners are
// invisible. Builds of an owner never use the images or results of another one, so that caching
// reveals nothing about other owners. The owner "" is the account that existed before there were
// others.
func Of(b Builder, owner string) Builder { return owned{b, owner} }

type owned struct {
	all   Builder
	owner string
}

// harvests are the bases of Harvest's own images.
var harvests = []string{"base", "agent"}

// shared reports whether s is an unchanged image of Harvest.
func (s Spec) shared() bool {
	return s.Owner == "" && slices.Contains(harvests, s.Base) && len(s.Commands) == 0 && s.Dockerfile == "" &&
		s.Parent == ""
}

// VisibleTo reports whether the image is visible to an owner as in Of.
func (i Image) VisibleTo(owner string) bool { return i.Spec.Owner == owner || i.Spec.shared() }

func (o owned) visible(img Image) bool { return img.VisibleTo(o.owner) }

func (o owned) Build(ctx context.Context, spec Spec, opts BuildOptions) (Image, error) {
	spec.Owner = ""
	if spec.shared() && opts.Force && o.owner != "" {
		return Image{}, errors.Remedy(errors.Newf(errors.Denied, "the image %q belongs to all accounts", spec.Base),
			"leave force out")
	}
	if !spec.shared() {
		spec.Owner = o.owner
	}
	return o.all.Build(ctx, spec, opts)
}

func (o owned) List(ctx context.Context) ([]Image, error) {
	all, err := o.all.List(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(img Image) bool { return !o.visible(img) }), nil
}

// Find implements Builder. If both have an image of that name, it prefers the owner's.
func (o owned) Find(ctx context.Context, ref string) (Image, error) {
	list, err := o.List(ctx)
	if err != nil {
		return Image{}, err
	}
	var exact, begins []Image
	for _, img := range list {
		switch {
		case ref == img.ID || ref == img.Digest || slices.Contains(img.Names, ref):
			exact = append(exact, img)
		case len(ref) > len(idPrefix) && strings.HasPrefix(img.ID, ref):
			begins = append(begins, img)
		}
	}
	if i := slices.IndexFunc(exact, func(img Image) bool { return img.Spec.Owner == o.owner }); i > 0 {
		return exact[i], nil
	}
	if len(exact) > 0 {
		return exact[0], nil
	}
	switch len(begins) {
	case 1:
		return begins[0], nil
	case 0:
		return Image{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no image %.100q", ref),
			"name an image that \"harvest image ls\" shows, or build it")
	}
	return Image{}, errors.Remedy(errors.Newf(errors.Invalid, "%q is ambiguous: %d images start with it", ref,
		len(begins)), "give more characters of the id")
}

// Unnamer is a Builder that can remove one of several names of an image. stored is the name with its owner, as in
// a Library.
type Unnamer interface {
	Unname(ctx context.Context, stored string) error
}

// Delete implements Builder. An account cannot remove a shared image. If id is one of several names of an image, only
// that name is removed.
func (o owned) Delete(ctx context.Context, id string) error {
	img, err := o.Find(ctx, id)
	if err != nil {
		return err
	}
	if img.Spec.Owner != o.owner {
		return errors.Remedy(errors.Newf(errors.Denied, "image %s belongs to all accounts", img.ID), "ask the operator")
	}
	if u, ok := o.all.(Unnamer); ok && len(img.Names) > 1 && slices.Contains(img.Names, id) {
		return u.Unname(ctx, stored(o.owner, id))
	}
	return o.all.Delete(ctx, img.ID)
}

// ownerMark separates owner and name where both are stored as one. It cannot occur in names.
const ownerMark = "~"

// stored returns the stored form of an owner's name for an image, so that accounts cannot conflict.
func stored(owner, name string) string {
	if owner == "" {
		return name
	}
	return owner + ownerMark + name
}

// shown returns the name in a stored form.
func shown(text string) string {
	if _, name, owned := strings.Cut(text, ownerMark); owned {
		return name
	}
	return text
}

package image

import (
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
)

// Of returns the owner's images in b, which keeps those of all: its own, and Harvest's, which all share since nothing of anybody is
// in them. Others' are as if they were not there; what an owner builds is never found in, or taken from, what another one built, so
// that no cache tells what somebody else may see. The owner "" is who was there before there were others.
func Of(b Builder, owner string) Builder { return owned{b, owner} }

type owned struct {
	all   Builder
	owner string
}

// harvests are the bases of Harvest's own images.
var harvests = []string{"base", "agent"}

// shared reports whether s is one of Harvest's own images, as it is.
func (s Spec) shared() bool {
	return s.Owner == "" && slices.Contains(harvests, s.Base) && len(s.Commands) == 0 && s.Dockerfile == "" && s.Parent == ""
}

// VisibleTo reports whether an owner, as Of has it, may know of the image.
func (i Image) VisibleTo(owner string) bool { return i.Spec.Owner == owner || i.Spec.shared() }

func (o owned) visible(img Image) bool { return img.VisibleTo(o.owner) }

func (o owned) Build(ctx context.Context, spec Spec, opts BuildOptions) (Image, error) {
	spec.Owner = ""
	if spec.shared() && opts.Force && o.owner != "" {
		return Image{}, errors.Remedy(errors.Newf(errors.Denied, "the image %q is everybody's", spec.Base), "leave force out")
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

// Find takes the owner's own image for a name that both have.
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
		return Image{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no image %.100q", ref), "name an image that \"harvest image ls\" shows, or build it")
	}
	return Image{}, errors.Remedy(errors.Newf(errors.Invalid, "%q is the beginning of %d images", ref, len(begins)), "give more of the id")
}

// Delete does not let one account remove what all share.
func (o owned) Delete(ctx context.Context, id string) error {
	img, err := o.Find(ctx, id)
	if err != nil {
		return err
	}
	if img.Spec.Owner != o.owner {
		return errors.Remedy(errors.Newf(errors.Denied, "image %s is everybody's", img.ID), "ask the server's operator")
	}
	return o.all.Delete(ctx, img.ID)
}

// ownerMark stands between an owner and a name where both are stored as one. No name that users give has it.
const ownerMark = "~"

// stored returns what the owner's name for an image is kept as, so that one account's names are never taken for another's.
func stored(owner, name string) string {
	if owner == "" {
		return name
	}
	return owner + ownerMark + name
}

// shown is the reverse of stored.
func shown(text string) (owner, name string) {
	owner, name, owned := strings.Cut(text, ownerMark)
	if !owned {
		return "", text
	}
	return owner, name
}

package image

import (
	"context"
	"slices"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// album is a Builder that stores built images unchanged.
type album struct{ images []Image }

func (a *album) Build(_ context.Context, spec Spec, _ BuildOptions) (Image, error) {
	digest, err := spec.Digest(nil)
	if err != nil {
		return Image{}, err
	}
	img := Image{ID: idOf(digest), Digest: digest, Names: []string{spec.Base}, Spec: spec}
	if !slices.ContainsFunc(a.images, func(i Image) bool { return i.ID == img.ID }) {
		a.images = append(a.images, img)
	}
	return img, nil
}

func (a *album) Find(context.Context, string) (Image, error) {
	return Image{}, errors.Errorf("it is asked through List")
}
func (a *album) List(context.Context) ([]Image, error) { return slices.Clone(a.images), nil }

func (a *album) Delete(_ context.Context, id string) error {
	a.images = slices.DeleteFunc(a.images, func(i Image) bool { return i.ID == id })
	return nil
}

// mission: A7
func TestOwnersImagesAreApart(t *testing.T) {
	t.Parallel()
	all := &album{}
	mine, theirs := Of(all, ""), Of(all, "acme")
	build := func(b Builder, spec Spec) Image {
		t.Helper()
		img, err := b.Build(t.Context(), spec, BuildOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	if a, b := build(mine, Spec{Base: "base"}), build(theirs, Spec{Base: "base"}); a.ID != b.ID {
		t.Error("the base is not shared")
	}
	a, b := build(mine, Spec{Base: "reg/private"}), build(theirs, Spec{Base: "reg/private", Owner: ""})
	if a.ID == b.ID {
		t.Error("one account gets what another one has built")
	}
	for _, c := range []struct {
		view Builder
		ref  string
		want string
	}{
		{mine, "reg/private", a.ID}, {theirs, "reg/private", b.ID}, {mine, b.ID, ""}, {theirs, a.ID, ""},
		{theirs, a.Digest, ""},
		{theirs, "base", "img_"}, {theirs, b.ID[:10], b.ID}, {mine, "img_", ""}, {mine, "nosuch", ""},
	} {
		img, err := c.view.Find(t.Context(), c.ref)
		if c.want == "" && errors.KindOf(err) != errors.NotFound || c.want != "" &&
			(err != nil || img.ID[:len(c.want)] != c.want) {
			t.Errorf("find %s: %s, %v", c.ref, img.ID, err)
		}
	}
	if err := mine.Delete(t.Context(), b.ID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("deleted what is another account's: %v", err)
	}
	base, err := theirs.Find(t.Context(), "base")
	if err != nil {
		t.Fatal(err)
	}
	if err := theirs.Delete(t.Context(), base.ID); errors.KindOf(err) != errors.Denied {
		t.Errorf("deleted what is everybody's: %v", err)
	}
	if _, err := theirs.Build(t.Context(), Spec{Base: "base"},
		BuildOptions{Force: true}); errors.KindOf(err) != errors.Denied {
		t.Errorf("forced what is everybody's: %v", err)
	}
	if err := theirs.Delete(t.Context(), b.ID); err != nil {
		t.Error(err)
	}
	if list, err := theirs.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("theirs: %v, %v", list, err)
	}
}

func TestStoredNames(t *testing.T) {
	t.Parallel()
	if err := CheckName(stored("acme", "x")); err == nil {
		t.Error("a user can give a name that is stored as another account's")
	}
	if name := shown(stored("acme", "a/b:1")); name != "a/b:1" {
		t.Error(name)
	}
	if name := shown(stored("", "a/b:1")); name != "a/b:1" {
		t.Error(name)
	}
}

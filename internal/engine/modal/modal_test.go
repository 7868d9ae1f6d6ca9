package modal

import (
	"context"
	"strings"
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/image"
)

// mission: A9, 9.2
func TestExplain(t *testing.T) {
	t.Parallel()
	for want, err := range map[errors.Kind]error{
		errors.NotFound: sdk.NotFoundError{Exception: "x"}, errors.Conflict: sdk.AlreadyExistsError{Exception: "x"},
		errors.Invalid:         sdk.InvalidError{Exception: "the reason"},
		errors.Exhausted:       sdk.ResourceExhaustedError{Exception: "x"},
		errors.Unauthenticated: status.Error(codes.Unauthenticated, "x"),
		errors.Denied:          status.Error(codes.PermissionDenied, "x"),
		errors.Unavailable:     status.Error(codes.Unavailable, "x"),
		errors.Unsupported:     status.Error(codes.Unimplemented, "x"), errors.Internal: status.Error(codes.DataLoss,
			"x"),
	} {
		got := call.Explain(err, "do it")
		if errors.KindOf(got) != want || !strings.Contains(got.Error(), "do it") {
			t.Errorf("%T %v is %v (%s), want %s", err, err, got, errors.KindOf(got), want)
		}
	}
	if err := call.Explain(nil, "do it"); err != nil {
		t.Errorf("no error is %v", err)
	}
	for _, code := range []codes.Code{codes.NotFound, codes.AlreadyExists, codes.InvalidArgument,
		codes.ResourceExhausted} {
		if kind := errors.KindOf(call.Explain(status.Error(code, "x"), "do it")); kind == errors.Internal {
			t.Errorf("%s is internal", code)
		}
	}
	m := errors.Message(call.Explain(status.Error(codes.InvalidArgument, "the reason"), "do it"))
	if !strings.Contains(m, "the reason") {
		t.Errorf("Modal's reason is not in %q", m)
	}
	missing := call.Explain(errors.Errorf("missing credentials, please set them"), "do it")
	if errors.KindOf(missing) != errors.Unauthenticated || !strings.Contains(errors.RemedyOf(missing),
		"MODAL_TOKEN_ID") {
		t.Errorf("without credentials: %v, %s", missing, errors.RemedyOf(missing))
	}
}

func TestAttempt(t *testing.T) {
	t.Parallel()
	calls, e := 0, &Engine{patience: call.Usual}
	got, err := ask(t.Context(), e, "do it", func(context.Context) (int, error) {
		if calls++; calls < 3 {
			return 0, status.Error(codes.Unavailable, "busy")
		}
		return 42, nil
	})
	if got != 42 || err != nil || calls != 3 {
		t.Errorf("after %d calls: %d, %v", calls, got, err)
	}
	calls = 0
	if _, err := ask(t.Context(), e, "do it", func(context.Context) (int, error) {
		calls++
		return 0,
			sdk.NotFoundError{}
	}); errors.KindOf(err) != errors.NotFound || calls != 1 {
		t.Errorf("what cannot succeed was tried %d times: %v", calls, err)
	}
	calls = 0
	_, err = ask(t.Context(), e, "do it", func(context.Context) (int, error) {
		calls++
		return 0,
			status.Error(codes.Unauthenticated, "x")
	})
	if errors.KindOf(err) != errors.Unavailable || calls != 1 ||
		!strings.Contains(errors.Message(err), "no longer accepts") ||
		!strings.Contains(errors.RemedyOf(err), "MODAL_TOKEN_ID") {
		t.Errorf("refused credentials, after %d calls: %v", calls, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := ask(ctx, e, "do it", func(context.Context) (int, error) {
		cancel()
		return 0,
			status.Error(codes.Unavailable, "busy")
	}); errors.KindOf(err) != errors.Canceled {
		t.Errorf("given up: %v", err)
	}
	never := make(chan struct{}) // as a call of the SDK that does not mind its context
	defer close(never)
	_, err = call.Attempt(t.Context(), t.Context(), 10*time.Millisecond, "do it",
		func(context.Context) (int, error) { <-never; return 0, nil })
	if errors.KindOf(err) != errors.Unavailable || errors.RemedyOf(err) == "" {
		t.Errorf("no answer: %v", err)
	}
}

func TestSplitDockerfile(t *testing.T) {
	t.Parallel()
	base, commands, err := splitDockerfile("# comment\n\nFROM debian:12\nRUN a \\\n  b\nENV X=1\n")
	if base != "debian:12" || err != nil || strings.Join(commands, "|") != "RUN a \\|  b|ENV X=1" {
		t.Errorf("%q, %q, %v", base, commands, err)
	}
	for _, text := range []string{"", "RUN x\n", "FROM a\nFROM b\n", "FROM a AS b\n", "FROM $X\n"} {
		if _, _, err := splitDockerfile(text); errors.KindOf(err) != errors.Unsupported {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestImages(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := &Engine{opts: Options{Image: DefaultImage}}
	i := &images{e: e, records: records.Images{Dir: t.TempDir()}}
	for n, id := range []string{"img_aaaa000000000000", "img_bbbb000000000000"} {
		r := records.Image{Modal: "im-1", Image: image.Image{
			ID: id, Digest: "sha256:" + id[4:], Names: []string{"base"},
			Built: time.Unix(int64(n), 0)}}
		if _, err := i.records.Named(r, []string{id[4:8]}); err != nil {
			t.Fatal(err)
		}
	}
	for ref, want := range map[string]string{"base": "img_bbbb000000000000", "aaaa": "img_aaaa000000000000",
		"img_aa": "img_aaaa000000000000", "sha256:bbbb000000000000": "img_bbbb000000000000"} {
		if img, err := i.Find(ctx, ref); err != nil || img.ID != want {
			t.Errorf("%s is %s, %v", ref, img.ID, err)
		}
	}
	for _, ref := range []string{"", "img_", "nothing"} {
		if _, err := i.Find(ctx, ref); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%q: %v", ref, err)
		}
	}
	r, err := i.records.Find("aaaa")
	if err == nil {
		err = i.learn(r, wire.Found{Env: map[string]string{"A": "1", "MODAL_TASK_ID": "x"}, Dir: "/work"})
	}
	if img, find := i.Find(ctx, "aaaa"); err != nil || find != nil || len(img.Config.Env) != 1 ||
		img.Config.Dir != "/work" {
		t.Errorf("learned %+v, %v, %v", img.Config, err, find)
	}
	if img, err := i.Build(ctx, image.Spec{Base: "aaaa"}, image.BuildOptions{Names: []string{"other"}}); err != nil ||
		img.ID != "img_aaaa000000000000" {
		t.Errorf("an image that is there: %+v, %v", img, err)
	}
	for name, spec := range map[string]image.Spec{
		"files": {Base: "x", Context: "c"}, "arguments": {Base: "x", Args: map[string]string{"A": "1"}},
		"a snapshot": {Parent: "p"}, "another platform": {Base: "x", Platform: "linux/s390x"},
	} {
		if _, err := i.Build(ctx, spec, image.BuildOptions{}); errors.KindOf(err) != errors.Unsupported ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := i.Build(ctx, image.Spec{Base: "agent"}, image.BuildOptions{}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("agent: %v", err)
	}
	if err := i.Delete(ctx, "img_aaaa"); err != nil {
		t.Error(err)
	}
	if list, err := i.List(ctx); err != nil || len(list) != 1 || list[0].ID != "img_bbbb000000000000" {
		t.Errorf("List: %+v, %v", list, err)
	}
	if err := i.Delete(ctx, "img_aaaa"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("Delete of none: %v", err)
	}
}

// TestImagesOfAccounts checks that an account can neither start nor build on another account's images and snapshots,
// and that no account's image replaces Harvest's own.
//
// mission: A7
func TestImagesOfAccounts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	i := &images{e: &Engine{opts: Options{Image: DefaultImage}}, records: records.Images{Dir: t.TempDir()}}
	for id, owner := range map[string]string{"img_aaaa000000000000": "a", "img_bbbb000000000000": "b",
		"img_cccc000000000000": ""} {
		base := "x"
		if owner == "" {
			base = ownImage
		}
		names := []string{"app"}
		if owner == "b" {
			names = []string{"bs", ownImage} // as an earlier version let them
		}
		r := records.Image{Modal: "im-1", Image: image.Image{ID: id, Digest: "sha256:" + id[4:], Names: []string{},
			Spec: image.Spec{Owner: owner, Base: base}, Built: time.Now()}}
		if owner == "" {
			names = []string{ownImage}
		}
		if _, err := i.records.Named(r, names); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ owner, ref, want string }{
		{"a", "app", "img_aaaa000000000000"}, {"b", "app", ""}, {"", "app", ""}, {"b", "img_aaaa000000000000", ""},
		{"a", "bs", ""}, {"", ownImage, "img_cccc000000000000"}, {"a", ownImage, "img_cccc000000000000"},
	} {
		r, err := i.owned(ctx, c.owner, c.ref)
		if r.ID != c.want || c.want == "" && errors.KindOf(err) != errors.NotFound {
			t.Errorf("%q has as %s %q, %v", c.owner, c.ref, r.ID, err)
		}
	}
	if img, err := image.Of(i, "a").Build(ctx, image.Spec{Base: "app"}, image.BuildOptions{}); err != nil ||
		img.ID != "img_aaaa000000000000" {
		t.Errorf("its own: %+v, %v", img, err)
	}
	for _, name := range []string{ownImage, agentImage} {
		if _, err := image.Of(i, "a").Build(ctx, image.Spec{Base: "app"},
			image.BuildOptions{Names: []string{name}}); errors.KindOf(err) != errors.Invalid ||
			errors.RemedyOf(err) == "" {
			t.Errorf("the name %s: %v", name, err)
		}
	}
}

func TestRegistryOf(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string]string{"debian:12": "docker.io", "me/x": "docker.io", "ghcr.io/me/x": "ghcr.io",
		"localhost/x": "localhost", "h:5000/x": "h:5000"} {
		if got := registryOf(ref); got != want {
			t.Errorf("%s: %s", ref, got)
		}
	}
}

func TestBuildErrors(t *testing.T) {
	t.Parallel()
	err := buildError(call.Explain(sdk.RemoteError{Exception: "step 2 failed"}, "build"), image.Spec{})
	if errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.Message(err), "step 2 failed") {
		t.Errorf("a failed step: %v", err)
	}
	if err := buildError(sdk.NotFoundError{}, image.Spec{Base: "b"}); err == nil {
		t.Error("an unknown image is no error")
	}
}

func TestParams(t *testing.T) {
	t.Parallel()
	e := &Engine{server: "abcdefghijkl", opts: Options{Life: Lifetime}}
	p, err := e.params(engine.Spec{ID: "box", Limits: engine.Limits{CPU: 2}, GPU: "T4"})
	if err != nil || p.GPU != "T4" || p.CPULimit != 2 || p.CPU <= 0 || p.CPU > 2 || !p.BlockNetwork ||
		p.Name != "abcdefghijkl-box" || p.Timeout != Lifetime || p.Tags[tagID] != "box" {
		t.Errorf("%+v, %v", p, err)
	}
	if name := e.nameOf(strings.Repeat("x", 64)); len(name) > 64 || !strings.HasPrefix(name, "abcdefghijkl-") {
		t.Errorf("a long id is named %q", name)
	}
	for what, spec := range map[string]engine.Spec{
		"a rule": {Network: engine.Network{Mode: engine.NetworkAllow, Allow: []string{"a.org:80"}}},
	} {
		if _, err := e.params(spec); errors.KindOf(err) != errors.Unsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := e.params(engine.Spec{Env: map[string]string{"A=B": ""}}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a bad name: %v", err)
	}
}

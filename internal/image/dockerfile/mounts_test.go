package dockerfile_test

import (
	"archive/tar"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// TestMountsInSandboxes checks that mounts of a RUN hide the files at their targets, obey their options, and leave
// nothing in the image.
//
// mission: B2
func TestMountsInSandboxes(t *testing.T) {
	testenv.Long(t)
	s := newSite(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"src/a": "A", "one": "1"})
	img := s.build(image.Spec{Dockerfile: `FROM base AS seed
RUN mkdir -p /seed/d && echo S >/seed/s && echo D >/seed/d/f && chown 1000:50 /seed /seed/s && chmod 2750 /seed
FROM base
COPY one /own/file
COPY one /own/dir/x
RUN --mount=type=bind,source=src,target=/own/dir --mount=type=tmpfs,target=/own/deep/er,size=1m <<EOF
set -e
test "$(ls /own/dir)" = a
test "$(cat /own/dir/a)" = A
if touch /own/dir/new 2>/dev/null; then echo "a bind mount is writable"; exit 1; fi
test "$(stat -c %a /own/deep/er)" = 1777
if head -c 2000000 /dev/zero 2>/dev/null >/own/deep/er/large; then echo "a tmpfs ignores its size"; exit 1; fi
EOF
RUN --mount=type=bind,source=src/a,target=/own/file,rw test "$(cat /own/file)" = A && echo changed >/own/file
RUN --mount=type=secret,id=s --mount=type=secret,id=s,target=/new/place/s cat /run/secrets/s /new/place/s >/dev/null
RUN --mount=type=secret,id=s,target=/new/place/s,uid=1000,gid=50,mode=0440 stat -L -c '%a %u %g' /new/place/s >/secret
RUN --mount=type=bind,from=scratch,target=/new/empty test -z "$(ls -A /new/empty)" && \
    test "$(stat -c %a /new/empty)" = 755 && ! touch /new/empty/x
RUN <<EOF
#!/bin/sh
echo "$0" >/script
EOF
RUN ls -d /dev/pipes /.harvest-bind /dev/shm/.harvest-secrets /run/secrets >/script2 2>/dev/null || true
RUN --mount=type=cache,id=c,target=/cached/dir --mount=type=tmpfs,target=/cached/dir/below/it touch /cached/dir/kept
RUN --mount=type=cache,id=c,target=/cached/dir test "$(ls -A /cached/dir)" = kept
RUN --mount=type=tmpfs,target=/used/tmp echo 1 >/used/file
RUN --mount=type=cache,id=f,target=/filled,from=seed,source=/seed \
    stat -c '%a %u %g' /filled /filled/s >/in && touch /filled/new
RUN --mount=type=cache,id=f,target=/filled,from=seed,source=/seed,ro \
    find /filled -type f | sort >>/in; ! touch /filled/x
RUN --mount=type=cache,id=r,target=/filled,from=seed,source=/seed,ro cat /filled/d/f >>/in
`}, image.BuildOptions{Context: dir, Secrets: map[string][]byte{"s": []byte("canary")}})
	out := s.run(img, "sh", "-c", "cat /own/file /own/dir/x /secret /script /script2 /in /used/file")
	if want := "11440 1000 50\n/dev/pipes/EOF\n2750 1000 50\n644 1000 50\n/filled/d/f\n/filled/new\n/filled/s\n" +
		"D\n1\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	got := names(t, s.shelf.Root(img), "own", "new", "cached", "filled", "used", "run/secrets", ".harvest-bind", "tmp")
	want := []string{"own/", "own/dir/", "own/dir/x", "own/file", "tmp/", "used/", "used/file"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the image's files (-want +got):\n%s", diff)
	}
}

// TestFilesBesideMounts checks that files that a RUN puts beside a mount, below directories that the image lacks, stay
// in the image after another RUN with the same mount; and that a COPY below a cache mount goes into the image alone.
//
// mission: B2
func TestFilesBesideMounts(t *testing.T) {
	s := newSite(t)
	img := s.build(image.Spec{Dockerfile: `FROM base
RUN ln -s /nowhere/yet /link
RUN --mount=type=cache,target=/made/uv --mount=type=tmpfs,target=/made/t mkdir -p /made/other && echo 1 >/made/other/f
RUN --mount=type=cache,target=/made/uv --mount=type=tmpfs,target=/made/t touch /made/uv/cached; chmod 711 /made
RUN --mount=type=cache,target=/link/c touch /link/c/x /link/beside
COPY <<E /made/uv/copied
text
E
RUN --mount=type=cache,target=/made/uv --mount=type=tmpfs,target=/over --mount=type=cache,target=/over/it \
    ls /made/uv >/in && ls -d /over/it >>/in
RUN --mount=type=cache,target=/gone/a/b chmod 700 /gone/a
RUN --mount=type=cache,target=/gone/a/b stat -c %a /gone/a >>/in
`}, image.BuildOptions{})
	if out := s.run(img, "sh", "-c", "cat /in; stat -c %a /made"); out != "cached\n/over/it\n755\n711\n" {
		t.Errorf("got %q", out)
	}
	got := names(t, s.shelf.Root(img), "made", "nowhere", "over", "gone")
	want := []string{"made/", "made/other/", "made/other/f", "made/uv/", "made/uv/copied", "nowhere/", "nowhere/yet/",
		"nowhere/yet/beside"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the image's files (-want +got):\n%s", diff)
	}
}

// names returns the sorted names of an image's files at and below some paths.
func names(t *testing.T, root string, paths ...string) []string {
	t.Helper()
	f, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := rootfs.OpenReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	err = r.Walk(".", func(hdr *tar.Header, _ io.Reader) error {
		name := strings.TrimPrefix(hdr.Name, "./")
		if slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(name+"/", p+"/") }) {
			all = append(all, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// TestSandboxLeavesNothing checks that the directories that a sandbox makes for itself do not get into an image that
// lacks them, except for those of the kernel's file systems, as in BuildKit; and that a RUN can make them.
//
// mission: B2
func TestSandboxLeavesNothing(t *testing.T) {
	testenv.Long(t)
	s := newSite(t)
	const base = "FROM scratch\nCOPY --from=base --exclude=tmp --exclude=dev --exclude=sys / /\n"
	img := s.build(image.Spec{Dockerfile: base + "RUN ls -A / >/1\nRUN rm /1\n"}, image.BuildOptions{})
	if got := names(t, s.shelf.Root(img), "tmp", "dev", "sys", "1"); !slices.Equal(got, []string{"dev/", "sys/"}) {
		t.Errorf("the image has %q", got)
	}
	img = s.build(image.Spec{Dockerfile: base + "RUN test ! -e /tmp && mkdir /tmp && chmod 1770 /tmp\n" +
		"RUN test -z \"$(ls -A /tmp)\" && touch /tmp/x\n"}, image.BuildOptions{})
	if got := s.run(img, "sh", "-c", "stat -c %a /tmp; ls /tmp"); got != "1770\nx\n" {
		t.Errorf("the image's /tmp: %q", got)
	}
}

// TestLayersInSandboxes checks that a sandbox has the files of all steps before it, if it begins with several layers.
// Another network makes each step begin in a new sandbox.
//
// mission: B2
func TestLayersInSandboxes(t *testing.T) {
	testenv.Long(t)
	s := newSite(t)
	img := s.build(image.Spec{Dockerfile: `FROM base
RUN mkdir -p /d /gone /file/below /hidden/below && echo 1 >/d/f && ln /d/f /d/g && echo 1 >/hidden/old && \
    touch -d 2001-01-01T00:00:00Z /d /gone /file/below /file /hidden/below /hidden
RUN --network=none rm -r /gone /file /hidden /d/f && echo 2 >/d/f && echo file >/file && mkdir /hidden && \
    touch -d 2002-02-02T00:00:00Z /d /file /hidden
RUN stat -c '%n %Y' /d /file /hidden >/times && ls -d /gone /hidden/* >>/times 2>/dev/null || cat /file /d/* >>/times
`}, image.BuildOptions{})
	want := "/d 1012608000\n/file 1012608000\n/hidden 1012608000\nfile\n2\n1\n"
	if got := s.run(img, "cat", "/times"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

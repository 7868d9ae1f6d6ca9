package dockerfile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
)

// mission: B2
func TestCacheFollowsChanges(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	files := map[string]string{"a": "A", "b": "B", "unused": "1"}
	text := "FROM tiny AS one\nCOPY a /a\nRUN cat /a /a >/aa\nFROM tiny\nCOPY --from=one /aa /x\nRUN cat /x >/y\nCOPY b /b\nRUN cat /b >/c; rm /x\n"
	build := func(what string, starts int, files map[string]string, text string, opts image.BuildOptions) *built {
		t.Helper()
		before := b.runner.starts()
		opts.Context = b.context(files)
		img := b.build(t, text, opts)
		if n := b.runner.starts() - before; n != starts {
			t.Errorf("%s: %d machines were started, want %d\n%s", what, n, starts, strings.Join(b.log, "\n"))
		}
		return img
	}
	first := build("first", 2, files, text, image.BuildOptions{})
	first.want(map[string]string{"/y": "AA", "/c": "B", "/x": ""})
	again := build("again", 0, files, text, image.BuildOptions{})
	if again.print != first.print || again.spec.Context != first.spec.Context {
		t.Error("an equal build is another image")
	}
	again.want(map[string]string{"/y": "AA", "/c": "B", "/x": ""})
	files["unused"] = "2"
	if img := build("another file that nothing uses", 0, files, text,
		image.BuildOptions{}); img.spec.Context != first.spec.Context {
		t.Error("the digest follows a file that nothing uses")
	}
	files["b"] = "BB"
	img := build("the last file", 1, files, text, image.BuildOptions{})
	img.want(map[string]string{"/y": "AA", "/c": "BB", "/x": ""})
	if img.spec.Context == first.spec.Context {
		t.Error("the digest does not follow the context")
	}
	files["a"] = "A2"
	build("the first file", 2, files, text, image.BuildOptions{}).want(map[string]string{"/y": "A2A2", "/c": "BB"})
	build("a comment", 0, files, "# why\n"+text+"\n# because\n", image.BuildOptions{})
	build("an appended step", 1, files, text+"RUN echo new >/new\n",
		image.BuildOptions{}).want(map[string]string{"/new": "new\n", "/y": "A2A2", "/x": ""})
	build("force", 2, files, text, image.BuildOptions{Force: true}).want(map[string]string{"/y": "A2A2"})
	// Other times are no change.
	touched := b.context(files)
	if err := os.Chtimes(filepath.Join(touched, "a"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	before := b.runner.starts()
	b.build(t, text, image.BuildOptions{Context: touched})
	if b.runner.starts() != before {
		t.Error("another time of a file made a step run again")
	}
	if err := os.Chmod(filepath.Join(touched, "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.build(t, text, image.BuildOptions{Context: touched})
	if b.runner.starts() != before+1 {
		t.Error("another mode of a file made no step run again")
	}
}

func TestStages(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	text := `ARG V=1
FROM tiny AS common
ARG V
RUN echo $V >/v
FROM common AS never
RUN exit 1
FROM common AS left
RUN echo left >/left
FROM common AS right
RUN echo right >/right
FROM scratch AS out
COPY --from=left /left /v /
COPY --from=2 /l?ft /again/
COPY --from=right /right /sub/dir/r
COPY --from=tiny /etc/passwd /passwd
`
	img := b.build(t, text, image.BuildOptions{})
	img.want(map[string]string{"/left": "left\n", "/v": "1\n", "/again/left": "left\n", "/sub/dir/r": "right\n",
		"/bin": "", "/passwd": img.Read("/passwd"), "/sub": "dir|755 0 0"})
	if n := len(listing(img.Tree)); n > 10 {
		t.Errorf("there are %d files", n)
	}
	b.spec(t, image.Spec{Dockerfile: text, Target: "LEFT", Args: map[string]string{"V": "2"}},
		image.BuildOptions{}).want(map[string]string{"/v": "2\n", "/left": "left\n", "/right": ""})
	if b.runner.most > 2 {
		t.Errorf("there were %d machines at once", b.runner.most)
	}
	if _, err := b.try(t, image.Spec{Dockerfile: text, Target: "never"}, image.BuildOptions{}); err == nil {
		t.Error("the stage never was built")
	}
}

func TestHeredocs(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	img := b.build(t, `FROM tiny
ENV W=world
RUN <<EOF
echo hello >/a
echo $W >>/a
EOF
RUN <<EOF cat >/b
from the heredoc $W
EOF
RUN <<'S'
#!/bin/sh
echo "$0" >/c
S
COPY <<one <<"two" /d/
1 $W
one
2 $W
two
COPY --chmod=755 <<-x /e
	tab
x
`, image.BuildOptions{})
	img.want(map[string]string{"/a": "hello\nworld\n", "/b": "from the heredoc world\n", "/c": "/dev/pipes/S\n",
		"/d/one": "1 world\n|644 0 0", "/d/two": "2 $W\n", "/e": "tab\n|755 0 0"})
}

// mission: F6
func TestSecretsStayOut(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	const canary = "canary-8f3a9c"
	secrets := map[string][]byte{"token": []byte(canary + "\n"), "key": []byte("second-" + canary)}
	text := `FROM tiny
RUN --mount=type=secret,id=token,required=true cat /run/secrets/token >/dev/null && stat -L -c '%a %u' /run/secrets/token >/mode
RUN --mount=type=secret,id=key,env=KEY \
  --mount=type=secret,id=token,target=/etc/t,mode=0444,uid=1000,gid=50 \
  echo "value: $KEY"; stat -L -c '%a %u %g' /etc/t >/mode2; cat /etc/t
RUN --mount=type=secret,id=absent ls /run/secrets/absent 2>/dev/null || echo none >/none
RUN ls /run/secrets >/left 2>&1 || true; cat /dev/shm/.harvest-secrets/* >>/left 2>/dev/null || true
`
	img := b.build(t, text, image.BuildOptions{Secrets: secrets})
	img.want(map[string]string{"/mode": "400 0\n", "/mode2": "444 1000 50\n", "/none": "none\n", "/etc/t": "",
		"/run/secrets/token": ""})
	if strings.Contains(img.Read("/left"), canary) {
		t.Errorf("a later RUN sees %q", img.Read("/left"))
	}
	if log := strings.Join(b.log, "\n"); strings.Contains(log, canary) || !strings.Contains(log, "value: [redacted]") {
		t.Errorf("the log is %s", log)
	}
	found := false
	err := filepath.WalkDir(b.cache.dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			data, _ := os.ReadFile(p)
			found = found || bytes.Contains(data, []byte(canary))
		}
		return err
	})
	if err != nil || found {
		t.Errorf("the cache holds the secret: %v, %v", found, err)
	}
	before := b.runner.starts()
	if before != 3 { // the two that had secrets, and that of the last two commands
		t.Errorf("%d machines were started", before)
	}
	secrets["token"] = []byte("another")
	b.build(t, text, image.BuildOptions{Secrets: secrets})
	if b.runner.starts() != before {
		t.Error("another value of a secret made steps run again")
	}
	if _, err := b.try(t,
		image.Spec{Dockerfile: "FROM tiny\nRUN --mount=type=secret,id=token echo " + canary + " && cat /run/secrets/token; exit 1\n"},
		image.BuildOptions{Secrets: map[string][]byte{"token": []byte(canary)}}); err == nil ||
		strings.Contains(err.Error(), canary) {
		t.Errorf("the error is %v", err)
	}
	if _, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\nRUN --mount=type=secret,id=token,env=T true\n"},
		image.BuildOptions{Secrets: map[string][]byte{"token": {0}}}); err == nil {
		t.Error("a secret with NUL became a variable")
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	dir := b.context(map[string]string{"src/a": "A", "src/d/b": "B", "one": "1"})
	text := `FROM tiny AS tools
RUN echo tool >/tool
FROM tiny
WORKDIR /w
RUN --mount=type=cache,id=c,target=/cache echo x >>/cache/n; cat /cache/n >/n1
RUN --mount=type=cache,id=c,target=/elsewhere,sharing=locked,uid=1000,gid=1001,mode=0700 echo x >>/elsewhere/n; cat /elsewhere/n >/n2; stat -c '%a %u %g' /elsewhere >/own
RUN --mount=type=cache,id=c,target=/cache,uid=1000,gid=1001,mode=0700 echo x >>/cache/n; \
    cat /cache/n >/n3; chmod 711 /cache
RUN --mount=type=cache,id=c,target=/cache,uid=1000,gid=1001,mode=0700,ro stat -c '%a %u %g' /cache >/own2
RUN --mount=type=cache,id=c,target=/cache cat /cache/n >/n4
RUN --mount=type=cache,id=c,target=/cache,mode=0700 ls /cache >/n5
RUN --mount=type=bind,source=src,target=src --mount=type=bind,from=tools,source=/tool,target=/t cat src/a src/d/b /t >/all; echo >src/new
RUN --mount=source=one,target=o cat o >/one
RUN --mount=type=tmpfs,target=/scratch echo t >/scratch/t; cat /scratch/t >/t2
RUN ls /w /scratch >/after 2>&1; true
`
	img := b.build(t, text, image.BuildOptions{Context: dir})
	img.want(map[string]string{
		"/n1": "x\n", "/n2": "x\n", "/n3": "x\nx\n", "/n4": "x\n", "/n5": "", "/own": "700 1000 1001\n",
		"/own2": "711 1000 1001\n", "/all": "ABtool\n", "/one": "1", "/t2": "t\n",
		"/cache/n": "", "/w/src/a": "", "/w/o": "", "/t": "", "/scratch/t": "",
	})
	before := b.runner.starts()
	b.build(t, text, image.BuildOptions{Context: dir})
	if b.runner.starts() != before {
		t.Error("built again")
	}
	changed := b.context(map[string]string{"src/a": "A2", "src/d/b": "B", "one": "1"})
	b.build(t, text, image.BuildOptions{Context: changed}).want(map[string]string{"/all": "A2Btool\n", "/n3": "x\nx\n"})
	if !slices.ContainsFunc(b.runner.started, func(s Setup) bool {
		return len(s.Mounts) == 1 && s.Mounts[0].Path == cachePath(0) && s.Mounts[0].ReadOnly
	}) {
		t.Errorf("no machine has the read-only cache: %+v", b.runner.started)
	}
	if mounts := b.runner.started[1].Mounts; len(mounts) != 1 || !strings.HasPrefix(mounts[0].Volume, "build-cache-") {
		t.Errorf("got %+v", b.runner.started)
	}
}

func TestCopyForms(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	dir := b.context(map[string]string{
		"a.txt": "A", "b.txt": "B", "c.md": "C", "d/e/f.go": "F", "d/e/g.txt": "G", "d/h.go": "H", "empty/": "",
		"l": "->d/e", ".dockerignore": "*.md\nd/h.go\n!c2.md\n", "c2.md": "C2",
	})
	img := b.build(t, `FROM tiny
COPY a.txt /one
COPY a.txt /dir/
COPY *.txt /many/
COPY d /d2
COPY l /followed
COPY --parents d/e/*.go /par/
COPY --parents ./d/./e/g.txt /piv/
COPY --exclude=**/*.txt d /ex
COPY --exclude=b.txt *.txt /ex2/
COPY --chmod=u=rwX,go=rX d /sym
COPY --chown=7 a.txt /num
COPY --chown=app:staff empty /made/up
COPY . /all
COPY nothing* /nope/
COPY ["a.txt", "/with space/"]
WORKDIR /var/run/wd
COPY b.txt .
ADD a.txt b.txt ./sub/
`, image.BuildOptions{Context: dir})
	img.want(map[string]string{
		"/one": "A|644 0 0", "/dir/a.txt": "A", "/many/a.txt": "A", "/many/b.txt": "B", "/d2/e/f.go": "F",
		"/d2/h.go": "", "/followed/f.go": "F", "/par/d/e/f.go": "F", "/par/d/e/g.txt": "",
		"/piv/e/g.txt": "G", "/ex/e/f.go": "F", "/ex/e/g.txt": "", "/ex2/a.txt": "A", "/ex2/b.txt": "",
		"/sym/e": "dir|755 0 0", "/sym/e/f.go": "F|644 0 0", "/num": "A|644 7 7",
		"/made/up": "dir|755 1000 50", "/made": "dir|755 1000 50", "/all/c.md": "",
		"/all/c2.md": "C2", "/all/l": "->d/e", "/all/empty": "dir",
		"/all/.dockerignore": img.Read("/all/.dockerignore"),
		"/with space/a.txt":  "A", "/tmp/wd/b.txt": "B", "/tmp/wd/sub/a.txt": "A", "/nope": "",
	})
	if b.runner.starts() != 0 {
		t.Errorf("%d machines were started to copy files", b.runner.starts())
	}
}

// TestCopyAsBuildKit checks rules of COPY that BuildKit documents.
func TestCopyAsBuildKit(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	dir := b.context(map[string]string{"a": "A", "l": "->a", "d/e/f.go": "F", "d/e/g/h.go": "H", "d/x": "X",
		"d/none/x": "X", "one.jar": "1", "two.jar": "2"})
	if err := os.Chmod(filepath.Join(dir, "d/e"), 0o750); err != nil {
		t.Fatal(err)
	}
	img := b.build(t, `FROM tiny AS hard
RUN mkdir /h && echo 1 >/h/a && ln /h/a /h/b
FROM tiny
COPY --from=hard /h /h
COPY --link a /var/run/linked
COPY ../a ../../d/x /outside/
COPY a l /twice/
COPY ./[al] /wild/
COPY *.jar /last
COPY --parents d/**/*.go /deep/
COPY --chmod=u+s,g+s a /setid
COPY --chmod=+t d/e /sticky
COPY --chmod=4755 a /octal
`, image.BuildOptions{Context: dir})
	img.want(map[string]string{"/var/run": "dir", "/var/run/linked": "A", "/tmp/linked": "", "/outside/a": "A",
		"/outside/x": "X", "/twice/a": "A", "/twice/l": "A", "/last": "2", "/deep/d/e/f.go": "F|644 0 0",
		"/deep/d/e/g/h.go": "H", "/deep/d/e": "dir|750 0 0", "/deep/d": "dir|755 0 0", "/deep/d/x": "",
		"/deep/d/none": "", "/h/b": "1\n",
		"/setid": "A|6644 0 0", "/sticky/f.go": "F|1644 0 0", "/octal": "A|4755 0 0"})
	one, _, _ := img.Lookup("/twice/a", false)
	two, _, _ := img.Lookup("/twice/l", false)
	three, _, _ := img.Lookup("/wild/a", false)
	four, _, _ := img.Lookup("/wild/l", false)
	if one == two || three == four {
		t.Error("two sources became hard links of one another")
	}
	one, _, _ = img.Lookup("/h/a", false)
	if two, _, _ = img.Lookup("/h/b", false); one != two {
		t.Error("two names of one file became two files")
	}
}

// TestCopyKeepsAttributes checks that COPY --from and ADD of archives keep file capabilities and attributes of users.
func TestCopyKeepsAttributes(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	attributes := map[string]string{"SCHILY.xattr.security.capability": "cap\x00", "SCHILY.xattr.user.note": "mine"}
	fill := func(tw *tar.Writer) {
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o755, PAXRecords: attributes})
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755, PAXRecords: attributes})
	}
	for _, note := range []string{"mine", "changed"} {
		attributes["SCHILY.xattr.user.note"] = note
		b.lib.add(note, image.Config{}, fill)
		img := b.build(t, `FROM `+note+` AS attributed
FROM tiny
WORKDIR /over/d
COPY --from=attributed / /over/
COPY --from=attributed /f /copied
COPY --from=attributed / /all/
ADD a.tar /added/
`, image.BuildOptions{Context: b.context(map[string]string{"a.tar": string(tarred(fill))})})
		for _, name := range []string{"/over/d", "/copied", "/all/f", "/all/d", "/added/f", "/added/d"} {
			if f, _, err := img.Lookup(name, false); err != nil || f == nil || !maps.Equal(f.Xattrs, attributes) {
				t.Errorf("%s: got %+v, %v", name, f, err)
			}
		}
	}
	if b.runner.starts() != 0 {
		t.Errorf("%d machines were started", b.runner.starts())
	}
}

// TestAddUnpacksOldArchives checks that ADD unpacks the format of Version 7, which has no magic number.
func TestAddUnpacksOldArchives(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	old := tarred(func(tw *tar.Writer) { fileEntry(tw, "old/file", "F", 0o644) })
	clear(old[257:265])
	copy(old[148:156], "        ")
	sum := 0
	for _, c := range old[:512] {
		sum += int(c)
	}
	copy(old[148:156], fmt.Sprintf("%06o\x00 ", sum))
	b.build(t, "FROM tiny\nADD v7 zeros /x/\n", image.BuildOptions{Context: b.context(map[string]string{
		"v7": string(old), "zeros": strings.Repeat("\x00", 4096)})}).want(map[string]string{"/x/old/file": "F",
		"/x/zeros": strings.Repeat("\x00", 4096), "/x/v7": ""})
}

// TestNamesWithoutUTF8 checks that a build context may have names that are not UTF-8, also if they are ignored.
func TestNamesWithoutUTF8(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	dir := b.context(map[string]string{"d/caf\xe9": "1", "d/\xff\xfe/x": "2", "ignored\xe9": "3",
		"l\xe9": "->d/caf\xe9", ".dockerignore": "ignored*\n"})
	var packed bytes.Buffer
	if err := files.Pack(t.Context(), dir, "", &packed); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(b.dir, "names.tar")
	if err := os.WriteFile(archive, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, context := range []string{dir, archive} {
		b.build(t, "FROM tiny\nCOPY . /all\nRUN cat /all/d/* /all/d/*/x >/both 2>/dev/null; true\n",
			image.BuildOptions{Context: context}).want(map[string]string{"/all/d/caf\xe9": "1",
			"/all/d/\xff\xfe/x": "2", "/all/ignored\xe9": "", "/all/l\xe9": "->d/caf\xe9", "/both": "12"})
	}
}

// TestPlatformsOfStages checks that names of this machine's platform mean this machine, and that another platform is
// asked for, copied from, and never run.
func TestPlatformsOfStages(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	if runtime.GOARCH != "amd64" {
		t.Skip("the names are those of amd64")
	}
	for _, name := range []string{"amd64", "linux/x86_64", "linux/amd64/v2"} {
		b.build(t, "FROM --platform="+name+" tiny\nRUN echo 1 >/1\n", image.BuildOptions{}).want(map[string]string{
			"/1": "1\n"})
	}
	for _, spec := range b.lib.builds {
		if spec.Platform != "" {
			t.Errorf("the platform %q is not this machine", spec.Platform)
		}
	}
	b.lib.builds = nil
	b.build(t, "FROM --platform=linux/arm64 tiny AS a\nWORKDIR /w\nFROM tiny\nCOPY --from=a /etc/group /w /x/\n",
		image.BuildOptions{}).want(map[string]string{"/x/group": "root:x:0:\nstaff:x:50:\napp:x:1001:\n"})
	if !slices.ContainsFunc(b.lib.builds, func(s image.Spec) bool { return s.Platform == "linux/arm64" }) {
		t.Errorf("got %+v", b.lib.builds)
	}
	_, err := b.try(t, image.Spec{Dockerfile: "FROM --platform=linux/arm64 tiny\nRUN true\n"}, image.BuildOptions{})
	if errors.KindOf(err) != errors.Unsupported {
		t.Errorf("got %v", err)
	}
}

// TestMountsLeaveNothing checks that a mount hides the files of the image at its target and leaves nothing in the
// image: neither its files nor mount points.
func TestMountsLeaveNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	dir := b.context(map[string]string{"src/a": "A", "one": "1"})
	img := b.build(t, `FROM tiny
COPY one /own/file
COPY one /own/dir/x
RUN --mount=type=bind,source=src,target=/own/dir --mount=type=tmpfs,target=/own/deep/er,size=1m \
    cat /own/dir/a >/a; ls /own/dir >/ls; echo 1 >/own/deep/er/x
RUN --mount=type=bind,source=src/a,target=/own/file --mount=type=secret,id=s cat /own/file >/b
RUN --mount=type=cache,id=c,target=/new/cache --mount=type=tmpfs,target=/new/cache/below/it true
RUN --mount=type=cache,id=c,target=/new/cache ls -A /new/cache >/in
RUN --mount=type=tmpfs,target=/used/tmp echo 1 >/used/file
`, image.BuildOptions{Context: dir, Secrets: map[string][]byte{"s": []byte("secret")}})
	img.want(map[string]string{"/own/dir/x": "1", "/own/dir/a": "", "/own/file": "1", "/own/deep": "", "/a": "A",
		"/ls": "a\n", "/b": "A", "/run": "", "/new": "", "/in": "", "/used/file": "1\n", "/used/tmp": "",
		bindDir: ""})
	b.build(t, "FROM tiny\nRUN --mount=type=cache,id=c,target=/new/cache --mount=type=tmpfs,target=/also/new "+
		"echo 1 >/1\n",
		image.BuildOptions{}).want(map[string]string{"/1": "1\n", "/new": "", "/also": ""})
}

// TestHeredocInCacheKey checks that another content of a heredoc is another step, also beside files of a stage.
func TestHeredocInCacheKey(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	for _, text := range []string{"one", "two", "one"} {
		img := b.build(t, "FROM tiny AS a\nFROM tiny\nCOPY <<E /e\n"+text+"\nE\n"+
			"COPY --from=a /etc/group <<F /d/\n"+text+"\nF\nRUN cat /e /d/F >/f\n", image.BuildOptions{})
		img.want(map[string]string{"/e": text + "\n", "/d/F": text + "\n", "/f": text + "\n" + text + "\n"})
	}
	if n := b.runner.starts(); n != 2 {
		t.Errorf("%d machines were started, want 2", n)
	}
	for _, text := range []string{"one", "two"} {
		img := b.build(t, "FROM tiny AS a\nFROM tiny\nCOPY --from=a /etc/group <<F /d/\n"+text+"\nF\n",
			image.BuildOptions{})
		img.want(map[string]string{"/d/F": text + "\n"})
	}
}

// TestCopyInCacheKey checks that another destination, owner or mode of the same files is another step.
func TestCopyInCacheKey(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	dir := b.context(map[string]string{"a": "A"})
	for copied, want := range map[string]map[string]string{
		"a /x": {"/x": "A|644 0 0", "/y": ""}, "a /y": {"/x": "", "/y": "A"}, "--chown=7 a /x": {"/x": "A|644 7 7"},
		"--chmod=600 a /x": {"/x": "A|600 0 0"}, "--link a /x": {"/x": "A|644 0 0"},
	} {
		b.build(t, "FROM tiny\nCOPY "+copied+"\n", image.BuildOptions{Context: dir}).want(want)
	}
}

// TestStagesInherit checks that a stage inherits the ARGs of its base and executes its ONBUILD instructions.
func TestStagesInherit(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	b.lib.add("triggers", image.Config{Env: map[string]string{"PATH": "/bin"},
		OnBuild: []string{"RUN echo image >>/triggered"}}, tiny(t))
	const text = `FROM triggers AS one
ARG V=inherited
ONBUILD RUN echo stage $V >>/triggered
FROM one
RUN echo $V >/v
`
	img := b.build(t, text, image.BuildOptions{})
	img.want(map[string]string{"/v": "inherited\n", "/triggered": "image\nstage inherited\n"})
	if len(img.config.OnBuild) > 0 {
		t.Errorf("the image has the triggers %q", img.config.OnBuild)
	}
	one := b.spec(t, image.Spec{Dockerfile: text, Target: "one"}, image.BuildOptions{})
	one.want(map[string]string{"/triggered": "image\n"})
	if got := one.config.OnBuild; !slices.Equal(got, []string{"RUN echo stage $V >>/triggered"}) {
		t.Errorf("the stage has the triggers %q", got)
	}
}

func TestIgnoreExceptions(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	content := map[string]string{".dockerignore": "*\n!keep/**\nkeep/not\n", "a": "A", "keep/b": "B", "keep/not": "N",
		"other/c": "C"}
	dir := b.context(content)
	var packed bytes.Buffer
	if err := files.Pack(t.Context(), dir, filepath.Join(dir, "Dockerfile"), &packed); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(b.dir, "context.tar")
	if err := os.WriteFile(archive, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var digests []string
	for _, context := range []string{dir, archive} {
		img := b.build(t, "FROM tiny\nCOPY . /all\n", image.BuildOptions{Context: context})
		img.want(map[string]string{"/all/a": "", "/all/keep/b": "B", "/all/keep/not": "", "/all/other": ""})
		digests = append(digests, img.spec.Context)
	}
	if digests[0] != digests[1] {
		t.Error("the directory and its archive have different digests")
	}
	own := filepath.Join(b.dir, "Own")
	if err := os.WriteFile(own+".dockerignore", []byte("keep\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	packed.Reset()
	if err := files.Pack(t.Context(), dir, own, &packed); err != nil {
		t.Fatal(err)
	}
	names := tarNames(t, &packed)
	if !slices.Equal(names, []string{"a", "other/", "other/c"}) {
		t.Errorf("got %v", names)
	}
	bad := b.context(map[string]string{".dockerignore": "[a-\n", "a": "A"})
	if _, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\nCOPY . /\n"},
		image.BuildOptions{Context: bad}); err == nil || !strings.Contains(err.Error(), "invalid .dockerignore") {
		t.Errorf("got %v", err)
	}
	if err := files.Pack(t.Context(), filepath.Join(dir, "a"), "", &packed); err == nil {
		t.Error("a file was packed as a context")
	}
}

func tarNames(t *testing.T, r *bytes.Buffer) []string {
	t.Helper()
	var names []string
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err != nil {
			return names
		}
		names = append(names, hdr.Name)
	}
}

func TestAddUnpacks(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	var plain bytes.Buffer
	tw := tar.NewWriter(&plain)
	dirEntry(tw, "d", 0o750)
	fileEntry(tw, "d/f", "F", 0o640)
	_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "d/g", Linkname: "d/f"})
	_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "own", Uid: 12, Gid: 13, Mode: 0o600})
	fileEntry(tw, "implied/x", "X", 0o600)
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"a.tar": plain.String(), "half.tar": plain.String()[:1600]}
	var z bytes.Buffer
	gz := gzip.NewWriter(&z)
	_, _ = gz.Write(plain.Bytes())
	_ = gz.Close()
	files["a.tar.gz"] = z.String()
	files["half.tgz"] = z.String()[:len(z.String())/2]
	z.Reset()
	x, _ := xz.NewWriter(&z)
	_, _ = x.Write(plain.Bytes())
	_ = x.Close()
	files["a.tar.xz"] = z.String()
	z.Reset()
	zs, _ := zstd.NewWriter(&z)
	_, _ = zs.Write(plain.Bytes())
	_ = zs.Close()
	files["a.tar.zst"] = z.String()
	z.Reset()
	gz = gzip.NewWriter(&z)
	_, _ = gz.Write([]byte("only text"))
	_ = gz.Close()
	files["text.gz"] = z.String()
	dir := b.context(files)
	for _, name := range []string{"a.tar", "a.tar.gz", "a.tar.xz", "a.tar.zst"} {
		img := b.build(t,
			"FROM tiny\nADD "+name+" /x/\nADD --unpack=false "+name+" /y/\nCOPY "+name+" /z/\nADD --chown=5:6 "+name+" /own\n", image.BuildOptions{Context: dir})
		img.want(map[string]string{"/x/d": "dir|750 0 0", "/x/d/f": "F|640 0 0", "/x/d/g": "F", "/x/own": "|600 12 13",
			"/own/own": "|600 5 6", "/own/d/f": "F|640 5 6", "/own/implied": "dir|755 0 0",
			"/own/implied/x": "X|600 5 6"})
		f, _, _ := img.Lookup("/x/d/f", false)
		g, _, _ := img.Lookup("/x/d/g", false)
		h, _, _ := img.Lookup("/y/"+name, false)
		if f != g || h == nil || h.Size != int64(len(files[name])) {
			t.Errorf("%s: the hard link or the plain copy is missing", name)
		}
	}
	b.build(t, "FROM tiny\nADD text.gz /x\n",
		image.BuildOptions{Context: dir}).want(map[string]string{"/x": files["text.gz"]})
	for _, name := range []string{"half.tar", "half.tgz"} {
		if _, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\nADD " + name + " /x/\n"},
			image.BuildOptions{Context: dir}); err == nil {
			t.Errorf("%s was unpacked", name)
		}
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	img := b.spec(t, image.Spec{Base: "tiny", Commands: []string{"ENV A=1", "RUN echo $A >/a",
		"RUN <<E\necho two >/b\nE"}}, image.BuildOptions{})
	img.want(map[string]string{"/a": "1\n", "/b": "two\n"})
	if img.config.Env["A"] != "1" || img.spec.Base != "tiny" {
		t.Errorf("got %+v", img.spec)
	}
}

// TestLargeLayers starts machines from whole root file systems, because their layers are large.
func TestLargeLayers(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	b := newBench(t, Options{Merged: 1})
	dir := b.context(map[string]string{"a": "A"})
	img := b.build(t,
		"FROM tiny\nRUN cat /bin/* >/big\nRUN --mount=type=tmpfs,target=/t true\nRUN rm /big; echo ok >/ok\n",
		image.BuildOptions{Context: dir})
	img.want(map[string]string{"/ok": "ok\n", "/big": ""})
	b.build(t, "FROM scratch\nCOPY a /a\nCOPY --from=tiny / /\nRUN cat /a >/b\n",
		image.BuildOptions{Context: dir}).want(map[string]string{"/b": "A"})
}

func TestEqualBuildsAtOnceShareSteps(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			root, err := os.CreateTemp(b.dir, "root-")
			if err == nil {
				defer root.Close()
				_, err = b.source.Build(t.Context(), image.Spec{Dockerfile: "FROM tiny\nRUN sleep 0.3; echo 1 >/1\n"},
					quiet, image.Output{Root: root, Temp: b.dir})
			}
			errs <- err
		}()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := b.runner.starts(); n != 1 {
		t.Errorf("%d machines were started, want 1", n)
	}
}

// TestForceMakesFilesAnew checks that a forced build has the current results of its steps, not the files of an earlier
// equal build: steps may download other content.
func TestForceMakesFilesAnew(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	const text = "FROM tiny\nRUN --mount=type=secret,id=k,env=K echo \"$K\" >/one\nRUN cat /one >/two\n"
	build := func(value string, force bool) *built {
		return b.build(t, text, image.BuildOptions{Force: force, Secrets: map[string][]byte{"k": []byte(value)}})
	}
	build("first", false).want(map[string]string{"/one": "first\n", "/two": "first\n"})
	build("second", false).want(map[string]string{"/one": "first\n", "/two": "first\n"})
	old, err := b.cache.made("*", layerExt, rootExt)
	if err != nil || len(old) != 3 {
		t.Fatalf("got %v, %v", old, err)
	}
	build("third", true).want(map[string]string{"/one": "third\n", "/two": "third\n"})
	for _, name := range old {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	build("fourth", false).want(map[string]string{"/one": "third\n", "/two": "third\n"})
	count := 0
	b.runner.refuse(func(op string) error {
		if op == "run" {
			count++
		}
		if count == 2 {
			return errors.Newf(errors.Internal, "broken")
		}
		return nil
	})
	if _, err := b.try(t, image.Spec{Dockerfile: text}, image.BuildOptions{Force: true,
		Secrets: map[string][]byte{"k": []byte("fifth")}}); err == nil {
		t.Error("a step that failed is no error")
	}
	b.runner.refuse(nil)
	build("sixth", false).want(map[string]string{"/one": "fifth\n", "/two": "fifth\n"})
}

// TestMetadataSharesFiles checks that a build that changes no files shares the root file system of its base, and
// that equal layers are written once.
//
// mission: B2
func TestMetadataSharesFiles(t *testing.T) {
	b := newBench(t, Options{})
	same := func(one, two string) bool {
		t.Helper()
		first, err := os.Stat(one)
		if err != nil {
			t.Fatal(err)
		}
		second, err := os.Stat(two)
		if err != nil {
			t.Fatal(err)
		}
		return os.SameFile(first, second)
	}
	first := b.lib.root(b.lib.images["tiny"])
	for _, text := range []string{"ENV A=2", "LABEL a=b", "USER 1000", `CMD ["sh"]`, `ENTRYPOINT ["sh"]`, "EXPOSE 80",
		"STOPSIGNAL INT", `SHELL ["/bin/sh", "-c"]`, "ENV A=3\nLABEL b=c\nCMD sh", "WORKDIR /"} {
		if b.build(t, "FROM tiny\n"+text, image.BuildOptions{}); !same(first, b.root) {
			t.Errorf("%q wrote a root file system", text)
		}
	}
	b.build(t, "FROM tiny\nCOPY <<EOF /new\nnew\nEOF\n", image.BuildOptions{})
	if copied := b.root; same(first, copied) {
		t.Error("a copy shares the root file system of the base")
	} else if b.build(t, "FROM tiny\nCOPY <<EOF /new\nnew\nEOF\nENV A=4", image.BuildOptions{}); !same(copied, b.root) {
		t.Error("a step that changes no files wrote the root file system again")
	}
}

package dockerfile_test

import (
	"archive/tar"
	"cmp"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
)

// random is a random Dockerfile.
type random struct {
	*rand.Rand
	steps []string // instructions
	views []view   // of the RUNs
}

// view is a RUN that lists the files that it sees.
type view struct {
	step    int
	targets []string // of its mounts
}

// places are the paths that random Dockerfiles change. Many are below directories that the images lack.
var places = []string{"/a", "/a/b", "/a/b/c", "/a/b/d", "/a/e", "/d", "/d/f", "/d/g", "/d/g/h", "/l", "/l/x", "/tmp",
	"/tmp/x", "/root/.cache", "/root/.cache/uv", "/root/.cache/other", "/var/cache", "/var/cache/m", "/var/run/y",
	"/var/run", "/opt", "/opt/one/two"}

// targets are the paths of mounts.
var targets = []string{"/a/b", "/a/b/c", "/d/g", "/new/deep/er", "/root/.cache/uv", "/root/.cache/pip", "/var/cache/m",
	"/var/run/z", "/tmp/m", "/l/m", "/opt/one", "/tmp", "/d"}

func (r *random) of(all []string) string { return all[r.IntN(len(all))] }

func newRandom(seed uint64) *random {
	r := &random{Rand: rand.New(rand.NewPCG(seed, 49))}
	for range 3 + r.IntN(5) {
		switch r.IntN(8) {
		case 0:
			r.steps = append(r.steps, r.copies())
		case 1:
			r.steps = append(r.steps, "WORKDIR "+r.of(places))
		default:
			r.run()
		}
	}
	if len(r.views) == 0 {
		r.run()
	}
	return r
}

// run adds a RUN with up to three mounts. It ends with a list of the files.
func (r *random) run() {
	v := view{step: len(r.steps)}
	text, n := "RUN", 0
	if r.IntN(3) > 0 {
		n = r.IntN(4)
	}
	for range n {
		target := r.of(targets)
		if slices.ContainsFunc(v.targets, func(t string) bool { return overlap(t, target) }) {
			continue // the order of such mounts is another test's
		}
		v.targets = append(v.targets, target)
		text += " --mount=" + r.of([]string{
			"type=cache,id=" + strconv.Itoa(r.IntN(2)) + ",target=" + target, "type=cache,target=" + target,
			"type=cache,id=seed,from=seed,source=/s,target=" + target, "type=tmpfs,target=" + target,
			"type=bind,source=dir,target=" + target, "type=bind,source=dir,rw,target=" + target,
			"type=bind,from=seed,source=/s,target=" + target, "type=secret,id=none,target=" + target})
	}
	text += " exec 2>/dev/null"
	for range 1 + r.IntN(5) {
		text += "; " + r.command()
	}
	r.steps = append(r.steps, text+"; "+list(len(r.steps)))
	r.views = append(r.views, v)
}

func overlap(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

func (r *random) command() string {
	at, to, n := r.of(places), r.of(places), strconv.Itoa(r.IntN(100))
	switch r.IntN(16) {
	case 0, 1, 2:
		return "mkdir -p " + at
	case 3:
		return "mkdir -m " + r.of([]string{"700", "1777", "2755"}) + " " + at
	case 4, 5, 6:
		return "mkdir -p " + path.Dir(at) + " && echo " + n + " >" + at
	case 7:
		return "rm -rf " + at
	case 8:
		return "rmdir " + at
	case 9:
		return "ln -s " + r.of([]string{to, "b", "../d", "none"}) + " " + at
	case 10:
		return "chmod " + r.of([]string{"700", "1777", "640", "755", "4755"}) + " " + at
	case 11:
		return "chown " + r.of([]string{"7", "8:9"}) + " " + at
	case 12:
		return "mv " + r.of([]string{"/d/f", "/a/e", "/root/.cache/other", "/opt"}) + " " + to
	case 13:
		return "cp -a " + r.of([]string{"/d", "/d/g", "/usr/share", "/a/e"}) + " " + to
	case 14:
		return "rm -rf " + at + "; mkdir -p " + at + " && echo " + n + " >" + at + "/n"
	}
	// Files with several names are not changed later: storage drivers differ in that.
	return "mkdir -p /h && echo " + n + " >/h/" + n + " && ln /h/" + n + " /h/" + n + "." + strconv.Itoa(r.IntN(9))
}

func (r *random) copies() string {
	return r.of([]string{"COPY file ", "COPY --chmod=600 file ", "COPY dir ", "COPY --link dir ",
		"COPY --chown=3:4 dir ",
		"COPY --from=seed /s "}) + r.of(places) + r.of([]string{"", "/"})
}

// list is a command that prints the files of the image, without mounts. The programs and libraries are always the same.
func list(step int) string {
	return fmt.Sprintf(`find / -xdev \( -path /bin -o -path /lib -o -path /lib64 -o -path /usr/lib `+
		`-o -path '/.harvest*' `+
		`-o -path /dev -o -path /proc -o -path /sys -o -path /etc \) -prune `+
		`-o -mindepth 1 -printf 'VIEW%d %%y %%m %%U:%%G %%p %%l\n' -type f -exec sha256sum {} + || true`, step)
}

// dockerfile is the text up to a step, with the seed of bind and cache mounts.
func (r *random) dockerfile(base string, steps int) string {
	return "FROM " + base + " AS seed\nRUN mkdir -p /s/sub && echo S >/s/f && chown 5:6 /s/sub && chmod 2750 /s/sub\n" +
		"FROM " + base + "\n" + strings.Join(r.steps[:steps], "\n") + "\n"
}

// lair has what random Dockerfiles need: images in a registry, and a build context.
type lair struct {
	*site
	host, dir string
}

// newLair returns a lair. The image full has every directory, and bare lacks those that sandboxes have by themselves.
func newLair(t *testing.T) *lair {
	t.Helper()
	l := &lair{site: newSite(t), dir: t.TempDir()}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	l.host = strings.TrimPrefix(server.URL, "http://")
	config := image.Config{Env: map[string]string{"PATH": "/bin"}, Dir: "/"}
	for name, dirs := range map[string][]string{
		"full": {"dev", "proc", "sys", "tmp", "root", "var/cache", "a", "d/g"}, "bare": {}} {
		dockerfile.PushImage(t, l.host+"/"+name, config, func(tw *tar.Writer) {
			for _, dir := range append([]string{"bin", "lib", "etc", "usr", "usr/lib", "usr/share", "var"}, dirs...) {
				_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755})
			}
			_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "usr/share/one", Mode: 0o644})
			_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/share/l", Linkname: "/usr/share/one"})
			_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "var/run", Linkname: "/run"})
			for _, name := range []string{"sh", "cat", "mkdir", "rm", "cp", "mv", "chmod", "chown", "ln", "rmdir",
				"find",
				"sha256sum", "pwd", "true"} {
				p, err := exec.LookPath(name)
				if err != nil {
					t.Fatal(err)
				}
				dockerfile.Program(t, tw, p)
			}
		})
	}
	write(t, l.dir, map[string]string{"file": "F", "dir/f": "DF", "dir/sub/g": "G"})
	return l
}

// base is the image on which a seed builds.
func (l *lair) base(seed uint64) string { return l.host + "/" + []string{"full", "bare"}[seed%2] }

// tree builds a Dockerfile, and returns its files.
func (l *lair) tree(t *testing.T, text string) (*files.Tree, error) {
	t.Helper()
	l.log = nil
	img, err := l.shelf.Build(t.Context(), image.Spec{Dockerfile: text}, image.BuildOptions{Context: l.dir,
		Log: func(line string) { l.log = append(l.log, line) }})
	if err != nil {
		return nil, err
	}
	tree := files.NewTree()
	t.Cleanup(func() { _ = tree.Close() })
	return tree, tree.AddImage(l.shelf.Root(img))
}

// views returns the lists of files that the RUNs printed, by step and path.
func views(lines []string) map[int]map[string]string {
	all, last := map[int]map[string]string{}, 0
	for _, line := range lines {
		_, line, _ = strings.Cut(line, "] ")
		sum, name, isSum := strings.Cut(line, "  /")
		if fields := strings.SplitN(line, " ", 6); len(fields) == 6 && strings.HasPrefix(line, "VIEW") {
			last, _ = strconv.Atoi(strings.TrimPrefix(fields[0], "VIEW"))
			if all[last] == nil {
				all[last] = map[string]string{}
			}
			kind := fields[1]
			if kind == "l" {
				fields[2] = "777"
			}
			all[last][fields[4]] = strings.TrimSpace(strings.Join([]string{kind, fields[2], fields[3], fields[5]}, " "))
		} else if len(sum) == 64 && isSum && all[last] != nil {
			all[last]["/"+name] += " " + sum
		}
	}
	return all
}

// seen describes the files of a tree as the RUNs print them.
func seen(t *testing.T, tree *files.Tree) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := tree.Root.Walk("/", func(name string, f *files.File) error {
		top := strings.Split(name, "/")[1]
		if slices.Contains([]string{"bin", "lib", "lib64", "dev", "proc", "sys", "etc"}, top) ||
			overlapsBelow(name, "/usr/lib") {
			return nil
		}
		sum, err := f.ContentDigest()
		kind := map[byte]string{tar.TypeReg: "f", tar.TypeDir: "d", tar.TypeSymlink: "l"}[f.Type]
		mode := fmt.Sprintf("%o", f.Mode)
		if kind == "l" {
			mode = "777"
		}
		all[name] = strings.TrimSpace(fmt.Sprintf("%s %s %d:%d %s", kind, mode, f.UID, f.GID, f.Link))
		if sum != "" {
			all[name] += " " + sum
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func overlapsBelow(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// compareView reports the differences of the files that a RUN saw and those of the image. A mount hides the files at
// its target, which the image may lack, with the directories above it.
func compareView(t *testing.T, tree *files.Tree, saw map[string]string, mounts []string) {
	t.Helper()
	has := seen(t, tree)
	var at []string
	for _, m := range mounts {
		_, real, err := tree.Lookup(m, true)
		if err != nil {
			return // the RUN replaced a directory above the mount
		}
		at = append(at, real)
	}
	names := slices.Sorted(maps.Keys(has))
	names = slices.Compact(slices.Sorted(slices.Values(append(names, slices.Collect(maps.Keys(saw))...))))
	for _, name := range names {
		below := slices.ContainsFunc(at, func(m string) bool { return overlapsBelow(name, m) })
		above := slices.ContainsFunc(at, func(m string) bool { return overlapsBelow(m, name) })
		if below || above && has[name] == "" || has[name] == saw[name] {
			continue
		}
		t.Errorf("%s: the RUN saw %q, and the image has %q", name, saw[name], has[name])
	}
}

// TestRunsSeeTheirImage checks with random Dockerfiles that the image after each RUN has the files that the RUN saw.
//
// mission: B2
func TestRunsSeeTheirImage(t *testing.T) {
	l := newLair(t)
	seeds := number(t, "HARVEST_TEST_VIEWS", 4)
	first := number(t, "HARVEST_TEST_FIRST", 0)
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := newRandom(seed)
			whole := r.dockerfile(l.base(seed), len(r.steps))
			if _, err := l.tree(t, whole); err != nil && !refused(err) {
				t.Fatalf("%v\n%s", err, whole)
			}
			saw := views(l.log)
			for _, v := range r.views {
				if saw[v.step] == nil {
					continue // an instruction before it was refused
				}
				tree, err := l.tree(t, r.dockerfile(l.base(seed), v.step+1)) // all of it is cached
				if err != nil {
					t.Fatal(err)
				}
				compareView(t, tree, saw[v.step], v.targets)
				if t.Failed() {
					t.Fatalf("step %d of\n%s", v.step, whole)
				}
			}
		})
	}
}

// refused reports whether a random Dockerfile does something impossible, such as a COPY below a file.
func refused(err error) bool {
	return strings.Contains(err.Error(), "not a directory") || strings.Contains(err.Error(), "is a directory")
}

func number(t *testing.T, variable string, or int) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv(variable), strconv.Itoa(or)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRandomAsBuildKit builds random Dockerfiles in sandboxes and with BuildKit, and compares the files. The seeds are
// HARVEST_TEST_DOCKERFILES numbers from HARVEST_TEST_FIRST. "make test-images" sets the variables.
//
// mission: B2
func TestRandomAsBuildKit(t *testing.T) {
	daemon, client := os.Getenv("HARVEST_TEST_BUILDKITD"), os.Getenv("HARVEST_TEST_BUILDCTL")
	if daemon == "" || client == "" {
		t.Skip("HARVEST_TEST_BUILDKITD and HARVEST_TEST_BUILDCTL are not set: run make test-images")
	}
	testenv.RequireTool(t, "runc", "runc")
	l := newLair(t)
	addr := dockerfile.StartBuildKit(t, daemon, client, l.host)
	first := number(t, "HARVEST_TEST_FIRST", 0)
	equal, refusals := 0, 0
	for seed := first; seed < first+number(t, "HARVEST_TEST_DOCKERFILES", 100); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := newRandom(seed)
			text := r.dockerfile(l.base(seed), len(r.steps))
			// Each seed has cache mounts of its own: builds are in the order of the seeds on both sides, but seeds that
			// one side refuses would change the caches.
			text = strings.ReplaceAll(text, "type=cache,id=", fmt.Sprintf("type=cache,id=%d-", seed))
			text = strings.ReplaceAll(text, "type=cache,target=", fmt.Sprintf("type=cache,id=%d,target=", seed))
			theirs, _, theirErr := dockerfile.TryBuildKit(t, client, addr, l.dir, text, "", nil)
			ours, err := l.tree(t, text)
			switch {
			case (err == nil) != (theirErr == nil):
				t.Errorf("Harvest: %v, BuildKit: %v", err, theirErr)
			case err != nil:
				refusals++
				return
			default:
				compareTrees(t, theirs, ours)
			}
			if t.Failed() {
				t.Fatalf("seed %d:\n%s", seed, text)
			}
			equal++
		})
	}
	t.Logf("%d Dockerfiles have equal files, and both sides refused %d", equal, refusals)
}

// compareTrees reports the differences of two images.
func compareTrees(t *testing.T, want, got *files.Tree) {
	t.Helper()
	theirs, ours := dockerfile.Listing(want), dockerfile.Listing(got)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(theirs)),
		slices.Collect(maps.Keys(ours)))))) {
		if theirs[name] != ours[name] {
			t.Errorf("%s: BuildKit has %q, and Harvest has %q", name, theirs[name], ours[name])
		}
	}
}

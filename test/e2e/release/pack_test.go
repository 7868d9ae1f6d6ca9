package release

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// epoch is the time of the commit of stages, and commit its id.
const (
	epoch  = 1700000000
	commit = "0123456789abcdef0123456789abcdef01234567"
)

// stageOf makes the directory that `release build` makes, with these programs, by platform, and stubs for the others.
func stageOf(t *testing.T, programs map[string]string) string {
	t.Helper()
	stage := t.TempDir()
	files := map[string]string{
		"release.json": fmt.Sprintf(`{"version": "0.1.0", "commit": %q, "time": %d, "go": "go1.26.3", "goSum": "00"}`,
			commit, epoch),
		"man/harvest.1": ".TH HARVEST 1\n", "man/harvest-run.1": ".TH HARVEST 1\n",
		"completions/harvest.bash": "bash\n", "completions/harvest.zsh": "zsh\n", "completions/harvest.fish": "fish\n",
	}
	for name, from := range map[string]string{"LICENSE": "LICENSE", "README.md": "README.md",
		"harvest.service": "docs/harvest.service", "harvest-rootless.service": "docs/harvest-rootless.service"} {
		text, err := os.ReadFile("../../../" + from)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	for _, on := range []string{"linux_amd64", "linux_arm64", "linux_arm", "darwin_amd64", "darwin_arm64",
		"windows_amd64"} {
		name := on + "/harvest"
		if on == "windows_amd64" {
			name += ".exe"
		}
		files[name], files["sbom/"+on+".json"] = "the program for "+on+"\n", `{"bomFormat": "CycloneDX"}`
		if program := programs[on]; program != "" {
			text, err := os.ReadFile(program)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = string(text)
		}
	}
	for name, text := range files {
		path := filepath.Join(stage, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return stage
}

// tool runs the program that makes releases.
func tool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), testenv.Peer(t, "../release"), args...).CombinedOutput()
	return string(out), err
}

// packed packs a stage and returns the directory of the release.
func packed(t *testing.T, stage string) string {
	t.Helper()
	dist := filepath.Join(t.TempDir(), "dist")
	if out, err := tool(t, "pack", "-stage", stage, "-out", dist); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dist
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// member is a file of an archive.
type member struct {
	mode fs.FileMode
	text string
}

// untar returns the members of a tar archive. All must have the time of the commit and belong to root.
func untar(t *testing.T, r io.Reader) map[string]member {
	t.Helper()
	members := map[string]member{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return members
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if header.ModTime.Unix() != epoch || header.Uid != 0 || header.Gid != 0 ||
			header.Uname != "root" && header.Uname != "" {
			t.Errorf("%s: time %v, owner %d %q", header.Name, header.ModTime, header.Uid, header.Uname)
		}
		members[strings.TrimPrefix(header.Name, "./")] = member{header.FileInfo().Mode(), string(data)}
	}
}

func gunzip(t *testing.T, data []byte) io.Reader {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestArchives checks the names, modes and contents of all archives.
func TestArchives(t *testing.T) {
	t.Parallel()
	dist := packed(t, stageOf(t, nil))
	names := []string{"LICENSE", "README.md", "completions/harvest.bash", "completions/harvest.fish",
		"completions/harvest.zsh", "harvest", "man/harvest-run.1", "man/harvest.1"}
	for _, on := range []string{"linux_amd64", "linux_arm64", "linux_arm", "darwin_amd64", "darwin_arm64"} {
		members := untar(t, gunzip(t, read(t, filepath.Join(dist, "harvest_0.1.0_"+on+".tar.gz"))))
		if got := slices.Sorted(maps.Keys(members)); !slices.Equal(got, names) {
			t.Errorf("%s has %v", on, got)
		}
		for name, m := range members {
			want := fs.FileMode(0o644)
			if name == "harvest" {
				want = 0o755
			}
			if m.mode != want {
				t.Errorf("%s: %s has the mode %v", on, name, m.mode)
			}
		}
		if got := members["harvest"].text; got != "the program for "+on+"\n" {
			t.Errorf("%s has %q", on, got)
		}
	}
	archive, err := zip.OpenReader(filepath.Join(dist, "harvest_0.1.0_windows_amd64.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	var got []string
	for _, f := range archive.File {
		got = append(got, f.Name)
		if !f.Modified.Equal(time.Unix(epoch, 0)) {
			t.Errorf("%s has the time %v", f.Name, f.Modified)
		}
	}
	names[5] = "harvest.exe"
	if !slices.Equal(got, names) {
		t.Errorf("the zip archive has %v", got)
	}
}

// TestReleaseFiles checks which files a release has, that their checksums hold, and that provenance names them all.
func TestReleaseFiles(t *testing.T) {
	t.Parallel()
	dist := packed(t, stageOf(t, nil))
	var want []string
	for _, on := range []string{"darwin_amd64.tar.gz", "darwin_arm64.tar.gz", "linux_amd64.tar.gz",
		"linux_arm64.tar.gz", "linux_arm.tar.gz", "windows_amd64.zip"} {
		want = append(want, "harvest_0.1.0_"+on, "harvest_0.1.0_"+on+".sbom.json")
	}
	want = append(want, "harvest_0.1.0_linux_amd64.deb", "harvest_0.1.0_linux_arm64.deb",
		"harvest_0.1.0_linux_amd64.rpm", "harvest_0.1.0_linux_arm64.rpm", "harvest_0.1.0_oci.tar")
	var statement struct {
		Type    string `json:"_type"`
		Subject []struct {
			Name   string
			Digest struct{ SHA256 string }
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest struct{ GitCommit string } }
			}
		}
	}
	if err := json.Unmarshal(read(t, filepath.Join(dist, "harvest_0.1.0_provenance.json")), &statement); err != nil {
		t.Fatal(err)
	}
	sums, subjects := map[string]string{}, []string{}
	for _, s := range statement.Subject {
		subjects, sums[s.Name] = append(subjects, s.Name), s.Digest.SHA256
	}
	slices.Sort(want)
	if !slices.Equal(subjects, want) || statement.Type != "https://in-toto.io/Statement/v1" {
		t.Errorf("provenance %s names %v, want %v", statement.Type, subjects, want)
	}
	if from := statement.Predicate.BuildDefinition.ResolvedDependencies; len(from) == 0 ||
		from[0].Digest.GitCommit != commit {
		t.Errorf("provenance names the source %+v", from)
	}
	want = append(want, "harvest_0.1.0_provenance.json")
	slices.Sort(want)
	var listed []string
	for line := range strings.Lines(string(read(t, filepath.Join(dist, "checksums.txt")))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed = append(listed, name)
		if got := fmt.Sprintf("%x", sha256.Sum256(read(t, filepath.Join(dist, name)))); got != sum ||
			sums[name] != "" && sums[name] != sum {
			t.Errorf("%s has the checksum %s, listed is %s, and provenance names %s", name, got, sum, sums[name])
		}
	}
	if !slices.Equal(listed, want) {
		t.Errorf("checksums.txt lists %v, want %v", listed, want)
	}
	if out, err := tool(t, "pack", "-stage", stageOf(t, nil), "-out", dist); err == nil ||
		!strings.Contains(out, "not empty") {
		t.Errorf("into an old release: %v, %s", err, out)
	}
}

// TestPackingIsReproducible packs two copies of a stage at different times, and finds a file that differs.
func TestPackingIsReproducible(t *testing.T) {
	t.Parallel()
	one, two := packed(t, stageOf(t, nil)), packed(t, stageOf(t, nil))
	if out, err := tool(t, "compare", one, two); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	name := "harvest_0.1.0_linux_arm64.rpm"
	data := read(t, filepath.Join(one, name))
	data[len(data)/2]++
	for _, change := range []struct {
		change func() error
		want   string
	}{
		{func() error { return os.WriteFile(filepath.Join(two, name), data, 0o600) },
			name + ": the files differ after byte"},
		{func() error { return os.WriteFile(filepath.Join(two, name), data[1:], 0o600) }, "different lengths"},
		{func() error { return os.Remove(filepath.Join(two, name)) }, name},
	} {
		if err := change.change(); err != nil {
			t.Fatal(err)
		}
		for _, dirs := range [][]string{{one, two}, {two, one}} {
			if out, err := tool(t, append([]string{"compare"}, dirs...)...); err == nil ||
				!strings.Contains(out, change.want) {
				t.Errorf("compare: %v, %q, want %q", err, out, change.want)
			}
		}
	}
}

// TestVersionOfRelease checks that all places name the same version.
func TestVersionOfRelease(t *testing.T) {
	t.Parallel()
	version := strings.TrimSpace(string(read(t, "../../../VERSION")))
	for file, want := range map[string]string{"install.sh": "version=${HARVEST_VERSION:-" + version + "}\n",
		"CHANGELOG.md": "\n## " + version + " "} {
		if text := string(read(t, "../../../"+file)); !strings.Contains(text, want) {
			t.Errorf("%s does not have %q", file, want)
		}
	}
}

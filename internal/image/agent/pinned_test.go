package agent

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestDownloadsOfImagesAreVerified checks that programs that builds of images download by name have a version and a
// digest, which is checked before the program runs. apt verifies Debian's packages with Debian's keys.
func TestDownloadsOfImagesAreVerified(t *testing.T) {
	t.Parallel()
	checks := map[*regexp.Regexp]string{
		regexp.MustCompile(`\bcurl --`):        "sha256sum --check",
		regexp.MustCompile(`\bwget `):          "sha256sum --check",
		regexp.MustCompile(`\bpip install\b`):  "--require-hashes",
		regexp.MustCompile(`\burlopen\(`):      "package-lock.json says",
		regexp.MustCompile(`npm-cli.js" ci\b`): "package-lock.json",
	}
	found := 0
	look := func(name string) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for download, check := range checks {
			if download.Match(text) {
				found++
				if !strings.Contains(string(text), check) {
					t.Errorf("%s downloads with %s, and does not verify with %q", name, download, check)
				}
			}
		}
		if regexp.MustCompile(`npm (install|i) |npx (-y|--yes)`).Match(text) && filepath.Base(name) == "Dockerfile" {
			t.Errorf("%s installs what no lock file names", name)
		}
	}
	for _, dir := range []string{"files", "../debian"} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && (filepath.Ext(name) == ".sh" && filepath.Base(name) != "tool.sh" ||
				filepath.Ext(name) == ".py" || d.Name() == "Dockerfile") {
				look(name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 4 {
		t.Errorf("only %d downloads are found", found)
	}
	text, err := os.ReadFile("files/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct {
			Version, Integrity string
			InBundle           bool // within the archive of another package
		}
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		t.Fatal(err)
	}
	for name, p := range lock.Packages {
		if name != "" && !p.InBundle && (p.Version == "" || !strings.HasPrefix(p.Integrity, "sha512-")) {
			t.Errorf("%s has no version and digest", name)
		}
	}
}

// TestDownloadsThatDifferAreRefused checks that the scripts of the image neither install nor run a download whose
// digest is another one.
func TestDownloadsThatDifferAreRefused(t *testing.T) {
	t.Parallel()
	var archive bytes.Buffer
	zip := gzip.NewWriter(&archive)
	w := tar.NewWriter(zip)
	const program = "#!/bin/sh\n: >\"$RAN\"\necho 2.0.2\n"
	err := w.WriteHeader(&tar.Header{Name: "volta", Mode: 0o755, Size: int64(len(program))})
	if err == nil {
		_, err = w.Write([]byte(program))
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = zip.Close()
	}
	script, readErr := os.ReadFile("files/lib/volta.sh")
	if err != nil || readErr != nil {
		t.Fatal(err, readErr)
	}
	sum, other := sha256.Sum256(archive.Bytes()), sha256.Sum256([]byte("other"))
	for digest, installs := range map[[32]byte]bool{sum: true, other: false} {
		dir := t.TempDir()
		for _, sub := range []string{"tmp", "usr/local/bin", "bin"} {
			if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		testenv.WriteFile(t, dir+"/archive", archive.Bytes())
		// curl ... --output FILE URL
		testenv.WriteFile(t, dir+"/bin/curl",
			[]byte("#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\ncp "+dir+"/archive $1\n"))
		if err := os.Chmod(dir+"/bin/curl", 0o755); err != nil {
			t.Fatal(err)
		}
		elsewhere := strings.NewReplacer("/opt/volta", dir+"/opt/volta", "/tmp/volta", dir+"/tmp/volta",
			"/usr/share/harvest", dir+"/usr/share/harvest", "/usr/local/bin", dir+"/usr/local/bin")
		cmd := exec.CommandContext(t.Context(), "sh", "-c", elsewhere.Replace(string(script)), "volta.sh", "2.0.2",
			hex.EncodeToString(digest[:]))
		cmd.Env = []string{"PATH=" + dir + "/bin:/usr/bin:/bin", "RAN=" + dir + "/ran"}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%v: %s", err, out)
		}
		_, ran := os.Stat(dir + "/ran")
		_, link := os.Stat(dir + "/usr/local/bin/volta")
		missing, _ := os.ReadFile(dir + "/usr/share/harvest/volta.missing")
		if (ran == nil) != installs || (link == nil) != installs ||
			strings.Contains(string(missing), "its SHA-256 differs") == installs {
			t.Errorf("installs is %t: ran: %v, link: %v, missing: %q", installs, ran, link, missing)
		}
	}

	text, err := os.ReadFile("files/lib/bootstrap.py")
	if err != nil {
		t.Fatal(err)
	}
	functions, _, found := strings.Cut(string(text), "\nmain(*sys.argv")
	if !found {
		t.Fatal("bootstrap.py does not end with a call of main")
	}
	python := testenv.RequireTool(t, "python3", "python3")
	file := filepath.Join(t.TempDir(), "package.tgz")
	testenv.WriteFile(t, file, []byte("content"))
	for content, accepted := range map[string]bool{"content": true, "other": false} {
		sum := sha512.Sum512([]byte(content))
		cmd := exec.CommandContext(t.Context(), python, "-c", functions+"\nfetch(*sys.argv[1:])", "file://"+file,
			"sha512-"+base64.StdEncoding.EncodeToString(sum[:]))
		if out, err := cmd.CombinedOutput(); (err == nil) != accepted || strings.Contains(string(out),
			"its sha512 differs") == accepted {
			t.Errorf("accepted is %t: %v: %s", accepted, err, out)
		}
	}
}

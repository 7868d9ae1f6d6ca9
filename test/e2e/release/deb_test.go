package release

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// packagedFiles are those that packages of both formats have.
var packagedFiles = []string{"/usr/bin/harvest", "/usr/lib/systemd/system/harvest.service",
	"/usr/lib/systemd/system/harvest-rootless.service", "/usr/share/bash-completion/completions/harvest",
	"/usr/share/fish/vendor_completions.d/harvest.fish", "/usr/share/man/man1/harvest.1.gz",
	"/usr/share/man/man1/harvest-run.1.gz", "/usr/share/doc/harvest/README.md"}

// TestDebianPackages checks the description, files and modes of both packages.
func TestDebianPackages(t *testing.T) {
	t.Parallel()
	dpkg := testenv.RequireTool(t, "dpkg-deb", "dpkg")
	dist := packed(t, stageOf(t, nil))
	for _, arch := range []string{"amd64", "arm64"} {
		path := filepath.Join(dist, "harvest_0.1.0_linux_"+arch+".deb")
		out, err := exec.CommandContext(t.Context(), dpkg, "--field", path, "Package", "Version",
			"Architecture").CombinedOutput()
		if want := "Package: harvest\nVersion: 0.1.0\nArchitecture: " + arch + "\n"; err != nil || string(out) != want {
			t.Errorf("%v, %s, want %s", err, out, want)
		}
		out, err = exec.CommandContext(t.Context(), dpkg, "--fsys-tarfile", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		members := untar(t, bytes.NewReader(out))
		for _, name := range append([]string{"/usr/share/zsh/vendor-completions/_harvest",
			"/usr/share/doc/harvest/copyright"}, packagedFiles...) {
			mode := fs.FileMode(0o644)
			if name == "/usr/bin/harvest" {
				mode = 0o755
			}
			if m, ok := members[name[1:]]; !ok || m.mode != mode {
				t.Errorf("%s: %s has the mode %v, want %v", arch, name, m.mode, mode)
			}
		}
		for name, m := range members {
			if m.mode.IsDir() && m.mode.Perm() != 0o755 {
				t.Errorf("directory %s has the mode %v", name, m.mode)
			}
		}
		if got := members["usr/bin/harvest"].text; got != "the program for linux_"+arch+"\n" {
			t.Errorf("%s: harvest is %q", arch, got)
		}
		unit := members["usr/lib/systemd/system/harvest.service"].text
		if !strings.Contains(unit, "ExecStart=/usr/bin/harvest up ") || strings.Contains(unit, "/usr/local") {
			t.Errorf("the unit is %s", unit)
		}
		if t.Failed() {
			t.Fatalf("the package has %v", slices.Sorted(maps.Keys(members)))
		}
	}
}

// debianRoot is the file system of a fresh Debian, as a tar archive.
func debianRoot(t *testing.T) string {
	t.Helper()
	mmdebstrap := testenv.RequireTool(t, "mmdebstrap", "mmdebstrap")
	path := filepath.Join(t.TempDir(), "debian.tar")
	args := []string{"--variant=minbase", "--include=systemd,rpm", "--dpkgopt=force-unsafe-io",
		"--aptopt=Acquire::Languages \"none\";"}
	settings, err := exec.CommandContext(t.Context(), "apt-config", "dump").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(settings)) { // to reach the packages as this machine does
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains([]string{"Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until",
			"Acquire::Check-Date"}, key) && value != `"";` {
			args = append(args, "--aptopt="+key+" "+value)
		}
	}
	out, err := exec.CommandContext(t.Context(), mmdebstrap, append(args, "bookworm", path)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// namespaces are arguments of unshare for inRoot and inImage.
var namespaces = []string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-c"}

// inRoot runs a script in a directory with a Debian as root, in namespaces of its own: chroot does not suffice, because
// the kernel lets no process in a chroot create a user namespace, and gVisor does. The end of the script ends all
// processes.
const inRoot = `set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
cd "$ROOT"
mkdir -p old var/lib/harvest/images
for dir in dev sys; do mount --rbind /$dir $dir; done
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount --bind "$IMAGES" var/lib/harvest/images
pivot_root . old
umount -l /old
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root HARVEST_POOL=0 /bin/sh -ec "$SCRIPT"
`

// TestDebianPackageInstalls installs the package in a fresh Debian, checks the unit with systemd's own program, runs
// Python in a sandbox there, and removes the package. It also checks how rpm reads the other package. The packages are
// those of HARVEST_TEST_DIST, the directory of a release, or made from a program without embedded keepers.
//
// mission: A1
func TestDebianPackageInstalls(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	t.Parallel()
	images := host.Images(t)
	dist := os.Getenv("HARVEST_TEST_DIST")
	if dist == "" {
		dist = packed(t, stageOf(t, map[string]string{"linux_amd64": testenv.CommandLine(t)}))
	}
	root := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xpf", debianRoot(t), "-C", root,
		"--exclude=./dev/*").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, format := range []string{"deb", "rpm"} {
		testenv.WriteFile(t, filepath.Join(root, "tmp", "harvest."+format),
			read(t, filepath.Join(dist, "harvest_0.1.0_linux_amd64."+format)))
	}
	run := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "unshare", append(namespaces, inRoot)...)
		cmd.Env = append(testenv.CleanEnv(), "ROOT="+root, "IMAGES="+images, "SCRIPT="+script)
		return strings.TrimSpace(stdout(t, cmd))
	}

	run("dpkg -i /tmp/harvest.deb")
	if out := run("harvest version"); !strings.HasPrefix(out, "harvest ") {
		t.Errorf("harvest version prints %s", out)
	}
	for _, unit := range []string{"harvest.service", "harvest-rootless.service"} {
		if out := run("systemd-analyze verify --man=no " + unit + " 2>&1"); strings.Contains(out, "harvest") {
			t.Errorf("systemd says of %s: %s", unit, out)
		}
	}
	const script = "export HARVEST_DATA=/var/lib/harvest; harvest run -q --code 'print(6*7)'; harvest down -q"
	if out := run(script); out != "42" {
		t.Errorf("harvest run prints %s", out)
	}
	run("dpkg -L harvest | xargs ls -d")
	if out := run("dpkg -r harvest; ls /usr/bin/harvest || echo gone"); !strings.HasSuffix(out, "gone") {
		t.Errorf("after its removal: %s", out)
	}

	listed := run("rpm -qp --dump /tmp/harvest.rpm")
	for _, name := range append([]string{"/usr/share/zsh/site-functions/_harvest",
		"/usr/share/licenses/harvest/LICENSE"}, packagedFiles...) {
		mode := " 0100644 root root "
		if name == "/usr/bin/harvest" {
			mode = " 0100755 root root "
		}
		if !slices.ContainsFunc(strings.Split(listed, "\n"), func(line string) bool {
			return strings.HasPrefix(line, name+" ") && strings.Contains(line, mode)
		}) {
			t.Errorf("the rpm has no %s with%s", name, mode)
		}
	}
	about := run("rpm -qp --queryformat '%{NAME} %{VERSION} %{ARCH} %{BUILDHOST}' /tmp/harvest.rpm")
	if want := "harvest 0.1.0 x86_64 localhost"; about != want {
		t.Errorf("the rpm is %s, want %s; it has %s", about, want, listed)
	}
}

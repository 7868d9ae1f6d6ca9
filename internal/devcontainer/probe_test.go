package devcontainer_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

func TestProbe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind, shell string
		want        []string // without the script
	}{
		{"", "/bin/bash", []string{"/bin/bash", "-lic"}}, {"loginInteractiveShell", "/bin/zsh", []string{"/bin/zsh",
			"-lic"}},
		{"loginShell", "/bin/sh", []string{"/bin/sh", "-lc"}}, {"interactiveShell", "/bin/sh", []string{"/bin/sh",
			"-ic"}},
		{"none", "/bin/sh", nil}, {"", "", nil}, {"loginShell", "/usr/bin/pwsh", []string{"/usr/bin/pwsh", "-Login",
			"-Command"}},
		{"interactiveShell", "/opt/pwsh-preview", []string{"/opt/pwsh-preview", "-Command"}},
	} {
		got := devcontainer.Probe(c.kind, c.shell, "MARK")
		if !slices.Equal(got[:max(len(got)-1, 0)], c.want) {
			t.Errorf("%s of %s: %q", c.kind, c.shell, got)
		}
	}
}

// Only startup files of the kind of shell count, and their output does no harm.
func TestProbeOfRealShell(t *testing.T) {
	t.Parallel()
	shell := testenv.RequireTool(t, "bash", "bash")
	home := t.TempDir()
	testenv.WriteFile(t, filepath.Join(home, ".bash_profile"),
		[]byte("echo welcome\nexport LOGIN='two\nlines' PATH=\"/opt/bin:/usr/bin:/bin\"\ncd /\n"))
	testenv.WriteFile(t, filepath.Join(home, ".bashrc"), []byte("export INTERACTIVE=yes\n"))
	container := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", "HOME": home, "KEPT": "1"}
	for kind, want := range map[string][2]string{"loginShell": {"two\nlines", ""}, "interactiveShell": {"", "yes"}} {
		argv := devcontainer.Probe(kind, shell, "m4rk")
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		env := devcontainer.ReadProbe(out, "m4rk", container, false)
		if got := [2]string{env["LOGIN"], env["INTERACTIVE"]}; got != want {
			t.Errorf("%s: %q, want %q (%q)", kind, got, want, out)
		}
		if _, ok := env["PWD"]; ok || env["KEPT"] != "1" {
			t.Errorf("%s: %v", kind, env)
		}
		if kind == "loginShell" && env["PATH"] != "/usr/local/bin:/opt/bin:/usr/bin:/bin" {
			t.Errorf("%s: %s", kind, env["PATH"])
		}
	}
}

func TestReadProbe(t *testing.T) {
	t.Parallel()
	container := map[string]string{"PATH": "/a:/usr/local/sbin:/b:/sbin/x", "X": "1"}
	for output, want := range map[string]string{
		"": container["PATH"], "M\nPATH=/c\x00": container["PATH"], "M\nX=2\x00M\n": container["PATH"],
		"M\nPATH=/c:/b\x00M\n": "/a:/c:/b", "M\nPATH=/b:/a\x00M": "/b:/a",
	} {
		if output == "M\nX=2\x00M\n" { // a shell without PATH has that of the container
			if env := devcontainer.ReadProbe([]byte(output), "M", container, false); env["X"] != "2" ||
				env["PATH"] != want {
				t.Errorf("%q: %v", output, env)
			}
			continue
		}
		if env := devcontainer.ReadProbe([]byte(output), "M", container, false); env["PATH"] != want {
			t.Errorf("%q: %v, want %s", output, env, want)
		}
	}
	if env := devcontainer.ReadProbe([]byte("M\nPATH=/c\x00M"), "M", container, true); env["PATH"] !=
		"/a:/usr/local/sbin:/b:/sbin/x:/c" {
		t.Errorf("%v", env)
	}
	if env := devcontainer.ReadProbe([]byte("M\nA=b=c\x00M"), "M", nil, true); len(env) != 1 || env["A"] != "b=c" {
		t.Errorf("%v", env)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app/startup"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

func TestDoctorView(t *testing.T) {
	t.Parallel()
	v := findingsView([]api.Finding{{Name: "a", OK: true}, {Name: "b", Needed: true, Remedy: "r"}, {Name: "c"}})
	if diff := cmp.Diff([]string{"b", "c"}, v.Names); diff != "" || v.Rows[1][0] != "FAIL" || v.Rows[2][2] != "→ r" ||
		v.Rows[3][0] != "weak" {
		t.Errorf("%s %q", diff, v.Rows)
	}
}

// TestDoctorFix checks that doctor --fix installs missing programs, and reports it.
func TestDoctorFix(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >> " + filepath.Join(bin, "calls") + "\ncase \"$*\" in *broken*) exit 1;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	var out bytes.Buffer
	c := newCommands("harvest", strings.NewReader(""), io.Discard, &out, []string{"PATH=" + bin + ":/bin:/usr/bin"})
	if err := c.fix(t.Context(), []api.Finding{{OK: true, Fix: "fine"}, {Name: "no package"}}); err != nil ||
		!strings.Contains(out.String(), "nothing") {
		t.Errorf("nothing to do: %v, %q", err, out.String())
	}
	missing := []api.Finding{{Fix: "mmdebstrap"}, {Fix: "uidmap"}}
	if os.Geteuid() != 0 {
		if err := c.fix(t.Context(), missing); errors.KindOf(err) != errors.Denied {
			t.Errorf("not as root: %v", err)
		}
		return
	}
	if err := c.fix(t.Context(), missing); err != nil ||
		!strings.Contains(out.String(), "installed: mmdebstrap uidmap") {
		t.Errorf("%v, %q", err, out.String())
	}
	calls, err := os.ReadFile(filepath.Join(bin, "calls"))
	if want := "update\ninstall -y --no-install-recommends mmdebstrap uidmap\n"; err != nil || string(calls) != want {
		t.Errorf("apt-get was called with %q, %v", calls, err)
	}
	if err := c.fix(t.Context(), []api.Finding{{Fix: "broken"}}); errors.KindOf(err) != errors.Unavailable ||
		errors.RemedyOf(err) == "" {
		t.Errorf("apt-get fails: %v", err)
	}
	t.Setenv("PATH", "/nonexistent")
	if err := c.fix(t.Context(), missing); errors.KindOf(err) != errors.Unsupported {
		t.Errorf("no apt-get: %v", err)
	}
}

func TestServerEnvironment(t *testing.T) {
	t.Parallel()
	c := newCommands("harvest", nil, nil, nil, []string{"PATH=/bin", "HARVEST_LIMITS_CPU=1", "SECRET=x", "PWD=/",
		"HOME=/h", "OPENAI_BASE_URL=a", "OPENROUTER_BASE_URL=b", "GOOGLE_GEMINI_BASE_URL=c"})
	if diff := cmp.Diff([]string{"PATH=/bin", "HARVEST_LIMITS_CPU=1", "HOME=/h", "OPENAI_BASE_URL=a",
		"OPENROUTER_BASE_URL=b", "GOOGLE_GEMINI_BASE_URL=c"}, c.serverEnv()); diff != "" {
		t.Error(diff)
	}
}

func TestLogBeginsAnew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), startup.LogName)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, startup.LogLimit+1); err != nil {
		t.Fatal(err)
	}
	f, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old, err := os.Stat(path + ".1")
	if err != nil || old.Size() != startup.LogLimit+1 {
		t.Errorf("the old one: %v, %v", old, err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 0 || info.Mode().Perm() != 0o600 {
		t.Errorf("the new one: %v, %v", info, err)
	}
}

// notRestricted has the checks of systemd-analyze that the units do not pass, for the reasons in docs/security.md. The
// second list is of root's unit only.
var (
	notRestricted = strings.Fields(`RootDirectoryOrRootImage MemoryDenyWriteExecute RestrictSUIDSGID ProcSubset
		PrivateNetwork IPAddressDeny DeviceAllow SystemCallFilter_privileged SystemCallFilter_mount
		SystemCallFilter_debug RestrictNamespaces_user RestrictNamespaces_pid RestrictNamespaces_net
		RestrictNamespaces_uts RestrictNamespaces_mnt RestrictNamespaces_ipc RestrictAddressFamilies_AF_NETLINK
		RestrictAddressFamilies_AF_UNIX RestrictAddressFamilies_AF_INET_INET6`)
	notRestrictedAsRoot = strings.Fields(`UserOrDynamicUser ProtectControlGroups Delegate PrivateUsers
		CapabilityBoundingSet_CAP_DAC_FOWNER_IPC_OWNER CapabilityBoundingSet_CAP_CHOWN_FSETID_SETFCAP
		CapabilityBoundingSet_CAP_SET_UID_GID_PCAP CapabilityBoundingSet_CAP_SYS_ADMIN`)
)

// TestSystemdUnitsAreHardened checks how systemd rates the units, and that each check that they do not pass is known.
// A unit with these options was run by systemd with all features; a change of the options needs that again.
func TestSystemdUnitsAreHardened(t *testing.T) {
	t.Parallel()
	analyze := testenv.RequireTool(t, "systemd-analyze", "systemd")
	examine := func(text string, how ...string) []byte {
		t.Helper()
		path := filepath.Join(t.TempDir(), "harvest.service")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var out, problems bytes.Buffer
		cmd := exec.CommandContext(t.Context(), analyze, append(append([]string{"security", "--offline=true",
			"--no-pager"}, how...), path)...)
		cmd.Stdout, cmd.Stderr = &out, &problems
		if err := cmd.Run(); err != nil && out.Len() == 0 { // it also fails if the rating is high
			t.Fatalf("%v\n%s", err, problems.String())
		}
		return out.Bytes()
	}
	exposure := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)
	for file, c := range map[string]struct {
		most  float64
		known []string
	}{
		"harvest.service":          {4.0, slices.Concat(notRestricted, notRestrictedAsRoot)},
		"harvest-rootless.service": {2.4, notRestricted},
	} {
		unit, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		m := exposure.FindSubmatch(examine(string(unit)))
		if m == nil {
			t.Fatalf("%s has no rating", file)
		}
		if got, err := strconv.ParseFloat(string(m[1]), 64); err != nil || got > c.most {
			t.Errorf("%s: %v, %v, want at most %v", file, got, err, c.most)
		}
		open := func(text string) (names []string) {
			var checks []struct {
				Name     string `json:"json_field"`
				Exposure string
			}
			if err := json.Unmarshal(examine(text, "--json=short"), &checks); err != nil {
				t.Fatal(err)
			}
			for _, check := range checks {
				if n, err := strconv.ParseFloat(check.Exposure, 64); err == nil && n > 0 {
					names = append(names, check.Name)
				}
			}
			return names
		}
		for _, name := range open(string(unit)) {
			if !slices.Contains(c.known, name) {
				t.Errorf("%s is not restricted by %s, and docs/security.md has no reason", file, name)
			}
		}
		weak := open(strings.Replace(string(unit), "LockPersonality=yes\n", "", 1))
		if !slices.Contains(weak, "LockPersonality") {
			t.Errorf("%s without LockPersonality passes its checks but %q", file, weak)
		}
	}
}

// TestSystemdUnit checks that systemd accepts the unit of the operations page without a warning.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	analyze := testenv.RequireTool(t, "systemd-analyze", "systemd")
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil || !bytes.Contains(page, []byte("](harvest.service)")) {
		t.Errorf("the page does not lead to the unit, %v", err)
	}
	unit, err := os.ReadFile("../../docs/harvest.service")
	if err != nil {
		t.Fatal(err)
	}
	rootless, err := os.ReadFile("../../docs/harvest-rootless.service")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable() // one that exists
	if err != nil {
		t.Fatal(err)
	}
	verify := func(text string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "harvest.service")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "harvest.service") { // not other services of this machine
				return line
			}
		}
		if err != nil && len(out) == 0 {
			return err.Error()
		}
		return ""
	}
	text := strings.Replace(string(unit), "ExecStart=/usr/local/bin/harvest up ", "ExecStart="+program+" up ", 1)
	if text == string(unit) {
		t.Error("the unit starts something else")
	}
	for _, text := range []string{text, strings.Replace(string(rootless), "ExecStart=/usr/local/bin/harvest up ",
		"ExecStart="+program+" up ", 1)} {
		if fault := verify(text); fault != "" {
			t.Error(fault)
		}
	}
	if verify(strings.Replace(text, "on-failure", "perhaps", 1)) == "" ||
		verify(string(unit)+"[Service]\nNoSuchThing=1\n") == "" {
		t.Error("faults are not found")
	}
}

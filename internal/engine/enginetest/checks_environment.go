package enginetest

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A4, 1.8, 1.9

var environmentChecks = []check{
	{"env/precedence", "a command's variables win over the sandbox's, and these over the image's", nil,
		checkPrecedence},
	{"env/values", "values may hold everything but NUL", nil, checkValues},
	{"env/large", "arguments and values of 100 KB arrive whole; larger ones too, or they are Invalid", nil,
		checkLargeValues},
	{"command/malformed", "a command that cannot be is Invalid", nil, checkMalformed},
	{"command/arguments", "arguments arrive as they are", nil, checkArguments},
	{"command/no program", "a program that is not there (127) or cannot be executed (126) is Invalid", nil,
		checkNoProgram},
	{"command/script", "a program may be a path relative to the working directory", nil, checkScript},
	{"command/own program", "a program of Harvest's own runs in every image, as any user in any directory",
		nil, checkOwn},
	{"dir/given and default", "commands start in their directory, else in the sandbox's, else in the image's",
		nil, checkDir},
	{"dir/links", "a directory may be a symbolic link, which leads nowhere but within the sandbox", nil,
		checkLinkedDir},
	{"dir/missing", "a directory that is not there is Invalid, and so is a file", nil, checkNoDir},
	{"user/of a command", "a command runs as the user it names, by name or number, with or without a group",
		users, checkUsers},
	{"user/of a sandbox", "a sandbox has a default user", users, checkDefaultUser},
	{"user/home", "HOME is the home directory of the command's user, if no variable names another one", both(users,
		needs(func(c engine.Capabilities) bool { return c.Hostname }, "the engine's machines choose HOME")), checkHome},
	{"user/unknown", "an unknown user or group is Invalid", users, checkUnknownUser},
	{"spec/described", "a sandbox tells its Spec, with its environment, from which another one like it is made", nil,
		checkDescribed},
	{"system/clock", "the clock inside is that of the host", nil, checkClock},
	{"system/host name",
		"a sandbox has the host name of its spec, or a valid one made of its id, and /etc/hostname, /etc/hosts and " +
			"/etc/machine-id of its own", needs(func(c engine.Capabilities) bool { return c.Hostname },
			"the engine names its hosts itself"), checkHostname},
}

func checkOwn(t *testing.T, s *suite) {
	pwd := probe.Sh("pwd")
	pwd.Dir = "/"
	cmd := engine.Command{Args: []string{engine.OwnEcho, "a b", "", "ü"}, Own: true, Dir: "/"}
	want := probe.Output(t, s.shared, pwd) + "a b\n\nü\n"
	if got := probe.Output(t, s.shared, cmd); !strings.HasSuffix(got, "\n"+want) {
		t.Errorf("%q, want …%q", got, want)
	}
	if s.engine.Capabilities().Users {
		cmd.User = "1234:1234"
		if got, want := probe.Output(t, s.shared, cmd), "1234\n"+want; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func checkPrecedence(t *testing.T, s *suite) {
	img, err := s.engine.Images().Find(probe.Patient(t), s.image)
	if err != nil {
		t.Fatal(err)
	}
	name := "PATH"
	print := engine.Command{Args: []string{"sh", "-c", `printf '%s|%s|%s' "$PATH" "$ONE" "$TWO"`}}
	old, has := img.Config.Env[name]
	if !has { // then the engine sets its own
		old = probe.Output(t, s.shared, probe.Sh(`printf %s "$PATH"`))
	}
	if got, want := probe.Output(t, s.shared, print), old+"||"; got != want {
		t.Errorf("the image's: %q, want %q", got, want)
	}
	sb := s.create(t, engine.Spec{Env: map[string]string{name: old + ":/sandbox", "ONE": "sandbox", "TWO": "sandbox"}})
	if got, want := probe.Output(t, sb, print), old+":/sandbox|sandbox|sandbox"; got != want {
		t.Errorf("the sandbox's: %q, want %q", got, want)
	}
	print.Env = map[string]string{name: old + ":/command", "TWO": ""}
	if got, want := probe.Output(t, sb, print), old+":/command|sandbox|"; got != want {
		t.Errorf("the command's: %q, want %q", got, want)
	}
}

func checkValues(t *testing.T, s *suite) {
	for _, value := range []string{"", "two words", "a\nb\n", "näïve 火 🌾", "x=y=z", `"'$HOME\`, "\x01\xff", " "} {
		cmd := probe.Sh(`printf '%s.' "$VALUE"`)
		cmd.Env = map[string]string{"VALUE": value}
		if got := probe.Output(t, s.shared, cmd); got != value+"." {
			t.Errorf("%q arrived as %q", value, got)
		}
	}
}

func checkLargeValues(t *testing.T, s *suite) {
	large := strings.Repeat("0123456789", 10_000)
	got := probe.Output(t, s.shared, engine.Command{Args: []string{"sh", "-c", `printf '%s%s' "$1" "$LARGE"`, "sh",
		large},
		Env: map[string]string{"LARGE": large}})
	if got != large+large {
		t.Errorf("%d bytes came back, want %d", len(got), 2*len(large))
	}
	huge := strings.Repeat("x", 1<<20)
	for name, cmd := range map[string]engine.Command{
		"value":    {Args: []string{"sh", "-c", `printf %s "$HUGE"`}, Env: map[string]string{"HUGE": huge}},
		"argument": {Args: []string{"sh", "-c", `printf %s "$1"`, "sh", huge}},
	} {
		out := new(testenv.Output)
		cmd.Stdout = out
		p, err := s.shared.Start(probe.Patient(t), cmd)
		if err != nil {
			probe.WantKind(t, "a huge "+name, err, errors.Invalid)
			continue
		}
		if exit, err := p.Wait(probe.Patient(t)); err != nil || exit.Code != 0 || out.String() != huge {
			t.Errorf("a huge %s: %+v, %v, %d bytes", name, exit, err, len(out.String()))
		}
	}
}

func checkMalformed(t *testing.T, s *suite) {
	sh := []string{"sh", "-c", ":"}
	for name, cmd := range map[string]engine.Command{
		"no arguments":       {},
		"an empty program":   {Args: []string{""}},
		"NUL in an argument": {Args: []string{"sh", "-c", ":\x00"}},
		"'=' in a name":      {Args: sh, Env: map[string]string{"A=B": "x"}},
		"an empty name":      {Args: sh, Env: map[string]string{"": "x"}},
		"NUL in a value":     {Args: sh, Env: map[string]string{"A": "a\x00b"}},
		"a relative dir":     {Args: sh, Dir: "tmp"},
		"NUL in the dir":     {Args: sh, Dir: "/tmp\x00"},
		"too much in all": {Args: append(slices.Clone(sh),
			slices.Repeat([]string{strings.Repeat("x", 100<<10)}, 30)...)},
		"a program too long":   {Args: []string{"/" + strings.Repeat("x", 5000)}},
		"a directory too long": {Args: sh, Dir: "/" + strings.Repeat("x", 5000)},
	} {
		_, err := s.shared.Start(probe.Patient(t), cmd)
		probe.WantKind(t, name, err, errors.Invalid)
	}
}

func checkArguments(t *testing.T, s *suite) {
	args := []string{"", "two words", "a\nb", "*", "$HOME", `\`, "--", "火", "\xff"}
	cmd := engine.Command{Args: append([]string{"sh", "-c", `for a; do printf '%s\0' "$a"; done`, "sh"}, args...)}
	if got, want := probe.Output(t, s.shared, cmd), strings.Join(args, "\x00")+"\x00"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func checkNoProgram(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	probe.Put(t, s.shared, dir, probe.File("plain", "#!/bin/sh\necho ran\n", 0o644), probe.Directory("sub", 0o755),
		probe.Link("dangling", "nowhere"),
		probe.File("no format", "echo ran\n", 0o755), probe.File("no interpreter", "#!/no/such/program\n", 0o755))
	for name, code := range map[string]int{
		"./no format": 126, "./plain": 126, "./sub": 126, "/": 126,
		"./no interpreter": 127, "no-such-program": 127, "/no/such/program": 127, "./missing": 127, "./dangling": 127,
		"./plain/below": 127,
	} {
		_, err := s.shared.Start(probe.Patient(t), engine.Command{Args: []string{name}, Dir: dir})
		probe.WantKind(t, name, err, errors.Invalid)
		if got := errors.ExitOf(err); got != code {
			t.Errorf("%s: the exit code is %d, want %d (%v)", name, got, code, err)
		}
	}
}

func checkScript(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	probe.Put(t, s.shared, dir, probe.File("run me", "#!/bin/sh\necho \"ran $1\"\n", 0o755), probe.Link("linked",
		"run me"))
	for _, name := range []string{"./run me", "./linked"} {
		cmd := engine.Command{Args: []string{name, "well"}, Dir: dir}
		probe.Start(t, s.shared, cmd).Expect(t, engine.Exit{}, "ran well\n")
	}
}

// where checks the directory in which a command runs. The command creates a file there, and where looks for it
// from outside.
func where(t *testing.T, sb engine.Sandbox, cmd engine.Command, dir string) {
	t.Helper()
	name := probe.NewID()
	cmd.Args = []string{"touch", name}
	probe.Output(t, sb, cmd)
	if _, found := probe.Get(t, sb, path.Join(dir, name))[name]; !found {
		t.Errorf("the command did not run in %s", dir)
	}
}

func checkDir(t *testing.T, s *suite) {
	img, err := s.engine.Images().Find(probe.Patient(t), s.image)
	if err != nil {
		t.Fatal(err)
	}
	if img.Config.Dir == "" {
		img.Config.Dir = "/"
	}
	where(t, s.shared, engine.Command{}, img.Config.Dir)
	sb := s.create(t, engine.Spec{Dir: "/checks/default dir"})
	probe.Put(t, sb, "/checks/default dir")
	probe.Put(t, sb, "/checks/gegeben ü")
	where(t, sb, engine.Command{}, "/checks/default dir")
	where(t, sb, engine.Command{Dir: "/checks/gegeben ü"}, "/checks/gegeben ü")
	where(t, sb, engine.Command{Dir: "/checks/../checks/./gegeben ü/"}, "/checks/gegeben ü")
	where(t, sb, engine.Command{Dir: "/"}, "/")
}

// checkLinkedDir checks that a working directory may be a symbolic link, also one that would lead out of the root.
func checkLinkedDir(t *testing.T, s *suite) {
	links := map[string]string{"/checks/linked": "real ü", "/checks/above/../twice": "linked"}
	if !strings.HasPrefix(s.engine.Capabilities().Isolation, "none") {
		links["/checks/absolute"] = "/checks/real ü"
		links["/checks/out"] = "../../../../../../checks/real ü"
	}
	sb := s.create(t, engine.Spec{Dir: "/checks/linked"})
	probe.Put(t, sb, "/checks/real ü")
	probe.Put(t, sb, "/checks/above")
	for name, target := range links {
		probe.Put(t, sb, "/checks", probe.Link(path.Base(name), target))
	}
	where(t, sb, engine.Command{}, "/checks/real ü")
	for name := range links {
		where(t, sb, engine.Command{Dir: name}, "/checks/real ü")
	}
}

func checkNoDir(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	probe.Put(t, s.shared, dir, probe.File("file", "x", 0o644), probe.Link("to file", "file"), probe.Link("dangling",
		"none"),
		probe.Link("loop", "loop"))
	for _, d := range []string{"/no/such/dir", dir + "/missing", dir + "/file", dir + "/to file", dir + "/dangling",
		dir + "/loop"} {
		_, err := s.shared.Start(probe.Patient(t), engine.Command{Args: []string{"true"}, Dir: d})
		probe.WantKind(t, d, err, errors.Invalid)
	}
}

func checkUsers(t *testing.T, s *suite) {
	cmd := probe.Sh(`echo "$(id -u) $(id -g)"`)
	nobody := strings.Fields(probe.Output(t, s.shared, probe.Sh(`echo "$(id -u nobody) $(id -g nobody)"`)))
	for user, want := range map[string]string{
		"root":              "0 0",
		"0":                 "0 0",
		"nobody":            nobody[0] + " " + nobody[1],
		nobody[0]:           nobody[0] + " " + nobody[1],
		"nobody:0":          nobody[0] + " 0",
		"nobody:root":       nobody[0] + " 0",
		"1234:5678":         "1234 5678",
		"1234:" + nobody[1]: "1234 " + nobody[1],
	} {
		cmd.User = user
		if got := strings.TrimSpace(probe.Output(t, s.shared, cmd)); got != want {
			t.Errorf("as %q, uid and gid are %q, want %q", user, got, want)
		}
	}
	cmd = probe.Sh("id -u")
	cmd.User = "54321" // not in any password file
	if got := probe.Output(t, s.shared, cmd); got != "54321\n" {
		t.Errorf("as 54321, the uid is %q", got)
	}
	cmd = probe.Sh("echo $(cat secret 2>/dev/null || echo refused)")
	cmd.User, cmd.Dir = "nobody", probe.NewDir(t, s.shared)
	probe.Put(t, s.shared, cmd.Dir, probe.File("secret", "seen", 0o600))
	if got := probe.Output(t, s.shared, cmd); got != "refused\n" {
		t.Errorf("another user can read a file with mode 0600: %q", got)
	}
}

func checkDefaultUser(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{User: "nobody"})
	cmd := probe.Sh("id -un")
	if got := probe.Output(t, sb, cmd); got != "nobody\n" {
		t.Errorf("the default user is %q", got)
	}
	cmd.User = "root"
	if got := probe.Output(t, sb, cmd); got != "root\n" {
		t.Errorf("the command's user is %q", got)
	}
}

func checkHome(t *testing.T, s *suite) {
	for user, want := range map[string]string{"": "/root", "nobody": "/nonexistent", "12345": "/"} {
		cmd := probe.Sh(`printf %s "$HOME"`)
		cmd.User = user
		if got := probe.Output(t, s.shared, cmd); got != want {
			t.Errorf("HOME of the user %q is %q, want %q", user, got, want)
		}
		cmd.Env = map[string]string{"HOME": "/mine"}
		if got := probe.Output(t, s.shared, cmd); got != "/mine" {
			t.Errorf("HOME of the user %q is %q, though the command has one", user, got)
		}
	}
}

func checkUnknownUser(t *testing.T, s *suite) {
	for _, user := range []string{"no-such-user", "root:no-such-group", "-1", "99999999999", ":", "root:",
		"nobody\x00", "a b"} {
		_, err := s.shared.Start(probe.Patient(t), engine.Command{Args: []string{"true"}, User: user})
		probe.WantKind(t, strconv.Quote(user), err, errors.Invalid)
	}
}

func checkClock(t *testing.T, s *suite) {
	before := time.Now()
	seconds, err := strconv.ParseInt(strings.TrimSpace(probe.Output(t, s.shared, probe.Sh("date +%s"))), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	inside := time.Unix(seconds, 0)
	if inside.Before(before.Add(-5*time.Second)) || inside.After(time.Now().Add(5*time.Second)) {
		t.Errorf("it is %v inside and %v outside", inside, time.Now())
	}
}

func checkHostname(t *testing.T, s *suite) {
	cmd := probe.Sh("hostname; cat /proc/sys/kernel/hostname /etc/hostname; " +
		"awk '$1 == \"127.0.1.1\" { print $2 }' /etc/hosts")
	id := s.shared.Handle().ID
	if got, want := probe.Output(t, s.shared, cmd), strings.Repeat(engine.HostName(id)+"\n", 4); got != want {
		t.Errorf("the host names are %q, want %q", got, want)
	}
	sb := s.create(t, engine.Spec{ID: "with_underscores_" + probe.NewID()})
	// The pattern is that of Java's URI class, whose host is null for a name with an underscore.
	name := strings.TrimSpace(probe.Output(t, sb, probe.Sh("hostname")))
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`).MatchString(name) {
		t.Errorf("the host name is %q", name)
	}
	lookup := probe.Sh(`python3 -c 'import socket; print(socket.gethostbyname(socket.gethostname()))'`)
	if got := probe.Output(t, sb, lookup); !strings.HasPrefix(got, "127.") {
		t.Errorf("the host name has the address %q", got)
	}
	one, other := probe.Output(t, s.shared, probe.Sh("cat /etc/machine-id")), probe.Output(t, sb,
		probe.Sh("cat /etc/machine-id"))
	if !regexp.MustCompile(`^[0-9a-f]{32}\n$`).MatchString(one) || one == other {
		t.Errorf("/etc/machine-id is %q, and that of another sandbox %q", one, other)
	}
	sb = s.create(t, engine.Spec{Hostname: "a-host.example"})
	if got := probe.Output(t, sb, cmd); got != strings.Repeat("a-host.example\n", 4) {
		t.Errorf("the host names are %q", got)
	}
	// ps is readable: the first process does not show the files that the engine made it write.
	if got := probe.Output(t, sb, probe.Sh("grep -c a-host.example /proc/1/cmdline; true")); got != "0\n" {
		t.Error("the arguments of process 1 contain the host name")
	}
}

func checkDescribed(t *testing.T, s *suite) {
	spec := s.spec(engine.Spec{ID: "described", Env: map[string]string{"WHO": "of the spec"}, Limits: someLimits})
	sb := s.create(t, spec)
	described, ok := sb.(engine.Described)
	if !ok {
		t.Fatalf("%T is no engine.Described", sb)
	}
	got, err := described.Spec(probe.Patient(t))
	if err != nil || got.ID != spec.ID || got.Env["WHO"] != spec.Env["WHO"] || got.Limits != spec.Limits ||
		got.Network.Mode != spec.Network.Mode {
		t.Fatalf("it tells %+v, %v", got, err)
	}
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := described.Spec(probe.Patient(t)); !errors.Is(err, errors.Conflict) {
		t.Errorf("after its end: %v", err)
	}
	again := s.create(t, got)
	who := probe.Sh("echo $WHO")
	if out := probe.Output(t, again, who); out != "of the spec\n" {
		t.Errorf("another one like it prints %q", out)
	}
}

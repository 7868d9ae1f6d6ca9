package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
	"github.com/RelevanceAI/harvest/internal/session/agent/npm"
)

// agentMode makes this test's program an agent. Its value selects the behaviour.
const agentMode = "HARVEST_TEST_ACP"

func TestMain(m *testing.M) {
	if mode := os.Getenv(agentMode); mode != "" {
		os.Exit(act(mode))
	}
	os.Exit(m.Run())
}

// act is the agent.
func act(mode string) int {
	switch mode {
	case "no start":
		fmt.Fprintln(os.Stderr, "no such plan")
		return 3
	case "stubborn": // ignores the end of its input and SIGTERM, and has a child
		signal.Ignore(syscall.SIGTERM)
		fmt.Println(startSleep(false))
		sleep()
	case "leaves": // a process of its own group keeps the output open
		startSleep(true)
	case "deaf":
		sleep()
	case "closes":
		os.Stdout.Close()
		syscall.Close(1)
		sleep()
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, jsonrpc.MaxLine)
	for lines.Scan() {
		m, _ := jsonrpc.Parse(lines.Bytes())
		respond(m, mode)
		if mode == "leaves" {
			return 0
		}
	}
	return 0
}

// sleep sleeps until the process is killed.
func sleep() {
	for {
		time.Sleep(time.Hour)
	}
}

func startSleep(session bool) int {
	cmd := exec.CommandContext(context.Background(), "sleep", "600")
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if err := cmd.Start(); err != nil {
		return 0
	}
	return cmd.Process.Pid
}

func respond(m jsonrpc.Message, mode string) {
	result := `{}`
	switch m.Method {
	case "initialize":
		result = `{"protocolVersion":1,"agentInfo":{"name":"fake","version":"7"},"agentCapabilities":{` +
			`"sessionCapabilities":{"resume":{}}}}`
	case "session/resume":
	case "session/new":
		result = `{"sessionId":"s"}`
		startServers(m.Params)
	case "session/prompt":
		switch mode {
		case "hangs once":
			if _, err := os.Stat("hung"); err != nil {
				_ = os.WriteFile("hung", nil, 0o600)
				return
			}
		case "killed":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "exits":
			fmt.Fprintln(os.Stderr, "out of ideas")
			os.Exit(4)
		}
		fmt.Println("some noise")
		fmt.Println(`{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":` +
			`"agent_message_chunk","content":{"type":"text","text":"` + strconv.Itoa(len(m.Params)/1000) + `"}}}}`)
		result = `{"stopReason":"end_turn"}`
	default:
		return
	}
	fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
}

// startServers starts the MCP servers, except the one with the name "ignored".
func startServers(params json.RawMessage) {
	var p struct {
		Servers []struct {
			Name, Command string
			Args          []string
			Env           []struct{ Name, Value string }
		} `json:"mcpServers"`
	}
	_ = json.Unmarshal(params, &p)
	for _, s := range p.Servers {
		if s.Name == "ignored" || s.Command == "" {
			continue
		}
		cmd := exec.CommandContext(context.Background(), s.Command, s.Args...)
		for _, e := range s.Env {
			cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
		}
		if cmd.Start() == nil {
			go func() { _ = cmd.Wait() }()
		}
	}
}

// run is a running bridge.
type bridgeRun struct {
	in     *io.PipeWriter
	lines  chan acp.Line
	code   chan int
	stderr lockedBuffer
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func start(t *testing.T, mode string, args ...string) *bridgeRun {
	t.Helper()
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	r := &bridgeRun{in: in, lines: make(chan acp.Line), code: make(chan int, 1)}
	args = append(append([]string{"-name", "fake", "-dir", t.TempDir()}, args...), "--", "/usr/bin/env",
		agentMode+"="+mode, os.Args[0])
	go func() {
		r.code <- Main(context.WithoutCancel(t.Context()), args, stdin, stdout, &r.stderr)
		stdout.Close()
	}()
	go func() {
		defer close(r.lines)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, jsonrpc.MaxLine)
		for lines.Scan() {
			var l acp.Line
			_ = json.Unmarshal(lines.Bytes(), &l)
			r.lines <- l
		}
	}()
	t.Cleanup(func() {
		in.Close()
		for range r.lines {
		}
	})
	return r
}

func (r *bridgeRun) send(t *testing.T, req acp.Request) {
	t.Helper()
	data, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.in.Write(append(data, '\n')); err != nil {
		t.Fatal(err)
	}
}

// until returns the next event of a type, or the zero event at the end of the output.
func (r *bridgeRun) until(t *testing.T, kind agent.Type) agent.Event {
	t.Helper()
	limit := time.After(testenv.Limit)
	for {
		select {
		case l, ok := <-r.lines:
			if !ok || l.Type == kind {
				return l.Event
			}
		case <-limit:
			t.Fatalf("no event %s within %s: %s", kind, testenv.Limit, r.stderr.String())
		}
	}
}

func (r *bridgeRun) exit(t *testing.T) int {
	t.Helper()
	go func() {
		for range r.lines {
		}
	}()
	select {
	case code := <-r.code:
		return code
	case <-time.After(testenv.Limit):
		t.Fatalf("the bridge has not ended within %s: %s", testenv.Limit, r.stderr.String())
		return 0
	}
}

// TestBridge checks a conversation with a real process, whose input is large.
func TestBridge(t *testing.T) {
	t.Parallel()
	r := start(t, "plain")
	if e := r.until(t, agent.Ready); e.Conversation != "s" || e.Version != "7" {
		t.Errorf("%+v", e)
	}
	if _, err := r.in.Write([]byte("noise\n{}\n")); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 2000} {
		r.send(t, acp.Request{Op: "prompt", ID: "p", Text: strings.Repeat("x", size*1000)})
		if e := r.until(t, agent.Other); string(e.Raw) != `"some noise"` {
			t.Errorf("%s", e.Raw)
		}
		if e := r.until(t, agent.Done); e.Failed || e.Text != strconv.Itoa(size) {
			t.Errorf("%+v", e)
		}
	}
	r.send(t, acp.Request{Op: "restart", ID: "a"})
	if e := r.until(t, agent.MCPRestarted); !e.Failed || e.ID != "a" {
		t.Errorf("%+v", e)
	}
	r.in.Close()
	if code := r.exit(t); code != 0 {
		t.Errorf("exit %d: %s", code, r.stderr.String())
	}
}

// TestAgentFails checks that the prompt gets the reason and the end of the error output if the agent's process fails.
func TestAgentFails(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"no start": "the agent has ended with exit status 3: no such plan",
		"exits":    "the agent has ended with exit status 4: out of ideas",
		"closes":   "fake has closed its output",
	} {
		r := start(t, mode)
		r.send(t, acp.Request{Op: "prompt", ID: "p", Text: "go"})
		if e := r.until(t, agent.Done); !e.Failed || e.Text != want {
			t.Errorf("%s: %+v", mode, e)
		}
		r.send(t, acp.Request{Op: "prompt", ID: "q", Text: "go"}) // the agent starts again
		if e := r.until(t, agent.Done); !e.Failed || e.Text != want {
			t.Errorf("%s, again: %+v", mode, e)
		}
		r.in.Close()
		if code := r.exit(t); code != 1 {
			t.Errorf("%s: exit %d: %s", mode, code, r.stderr.String())
		}
	}
}

// TestAgentKilledBySignal checks that the bridge passes on the agent's end by a signal as its own end. No line may end
// the turn, because the session may restart the agent.
func TestAgentKilledBySignal(t *testing.T) {
	t.Parallel()
	r := start(t, "killed")
	r.send(t, acp.Request{Op: "prompt", ID: "p", Text: "go"})
	if e := r.until(t, agent.Done); e.Type != "" {
		t.Errorf("%+v", e)
	}
	if code := r.exit(t); code != 137 || !strings.Contains(r.stderr.String(), "died of SIGKILL") {
		t.Errorf("exit %d: %s", code, r.stderr.String())
	}
}

// TestGroupIsKilled checks that an agent that ignores the end of its input and SIGTERM is killed with its children.
func TestGroupIsKilled(t *testing.T) {
	t.Parallel()
	r := start(t, "stubborn")
	pid := string(r.until(t, agent.Other).Raw)
	r.in.Close()
	if code := r.exit(t); code != 0 {
		t.Errorf("exit %d: %s", code, r.stderr.String())
	}
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testenv.Limit); alive(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %s is alive", pid)
		}
	}
}

// TestOutputKeptOpen checks that the bridge ends with the agent if another process keeps the agent's output open.
func TestOutputKeptOpen(t *testing.T) {
	t.Parallel()
	r := start(t, "leaves")
	r.send(t, acp.Request{Op: "prompt", ID: "p", Text: "go"})
	if e := r.until(t, agent.Done); !e.Failed || !strings.Contains(e.Text, "exit status 0") {
		t.Errorf("%+v", e)
	}
	r.in.Close()
	r.exit(t)
}

// TestDeafAgent checks that an agent that reads nothing does not stop the bridge.
func TestDeafAgent(t *testing.T) {
	t.Parallel()
	r := start(t, "deaf")
	r.send(t, acp.Request{Op: "prompt", ID: "p", Text: strings.Repeat("x", 1<<20)})
	r.send(t, acp.Request{Op: "interrupt"})
	if e := r.until(t, agent.Done); !e.Interrupted {
		t.Errorf("%+v", e)
	}
	r.in.Close()
	r.exit(t)
}

// TestCancelRestarts checks that an agent that does not answer a cancelled prompt is ended before the turn ends, and
// that the next prompt starts it again in its session.
func TestCancelRestarts(t *testing.T) {
	testenv.Long(t) // it waits for cancelTime
	t.Parallel()
	r := start(t, "hangs once")
	r.send(t, acp.Request{Op: "prompt", ID: "p", Text: "go"})
	r.until(t, agent.Ready)
	r.send(t, acp.Request{Op: "interrupt"})
	if e := r.until(t, agent.Done); !e.Interrupted {
		t.Errorf("%+v", e)
	}
	r.send(t, acp.Request{Op: "prompt", ID: "q", Text: "go"})
	if e := r.until(t, agent.Ready); e.Conversation != "s" {
		t.Errorf("%+v", e)
	}
	if e := r.until(t, agent.Done); e.Failed {
		t.Errorf("%+v", e)
	}
}

// TestUnknownProgram checks that an agent that cannot be started is an error with a remedy.
func TestUnknownProgram(t *testing.T) {
	t.Parallel()
	var out, stderr bytes.Buffer
	code := Main(t.Context(), []string{"-dir", t.TempDir(), "--", "/nosuch/agent"},
		strings.NewReader(`{"op":"prompt","id":"p","text":"go"}`+"\n"), &out, &stderr)
	if code != 1 || !strings.Contains(out.String(), "cannot be started") || !strings.Contains(out.String(), `"done"`) {
		t.Errorf("exit %d: %s%s", code, out.String(), stderr.String())
	}
	if code := Main(t.Context(), []string{"-odd"}, strings.NewReader(""), io.Discard, &stderr); code != 2 {
		t.Errorf("exit %d", code)
	}
	if code := Main(t.Context(), nil, strings.NewReader(""), io.Discard, &stderr); code != 2 {
		t.Errorf("exit %d", code)
	}
}

// TestServers checks that the state of MCP servers is known although the protocol has no word about it.
func TestServers(t *testing.T) {
	t.Setenv("HARVEST_TEST_VALUE", "600")
	file := t.TempDir() + "/servers.json"
	config := []byte(`{"mcpServers":{"runs":{"command":"sleep","args":["${HARVEST_TEST_VALUE}"],"env":{"A":"b"}},` +
		`"ends":{"command":"true"},"missing":{"command":"nosuchprogram"},` +
		`"ignored":{"command":"sleep","args":["600"]},` +
		`"remote":{"type":"http","url":"http://127.0.0.1:1/mcp"}}}`)
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, "plain", "-mcp", file)
	got := map[string]string{}
	for deadline := time.Now().Add(testenv.Limit); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		r.send(t, acp.Request{Op: "mcp"})
		pending := false
		for _, m := range r.until(t, agent.MCPStatus).MCP {
			got[m.Name] = m.Status
			pending = pending || m.Status == "pending"
		}
		if !pending && got["ends"] == "ended" {
			break
		}
	}
	want := map[string]string{"runs": "connected", "ends": "ended", "missing": "missing", "ignored": "ignored",
		"remote": "ignored"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestExpand(t *testing.T) {
	t.Setenv("HARVEST_TEST_VALUE", "v")
	t.Setenv("HARVEST_TEST_EMPTY", "")
	for text, want := range map[string]string{"": "", "a": "a", "$HARVEST_TEST_VALUE": "$HARVEST_TEST_VALUE",
		"x${HARVEST_TEST_VALUE}y": "xvy", "${HARVEST_TEST_UNSET:-d}": "d", "${HARVEST_TEST_EMPTY:-d}": "d",
		"${HARVEST_TEST_EMPTY}": "", "${HARVEST_TEST_UNSET}": ""} {
		if got := expand(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestInstall checks that an agent that is missing is installed by the script of the user, and that a failure has the
// script's words.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var said []string
	say := func(text string) { said = append(said, text) }
	script := "printf '#!/bin/sh\\n' > " + dir + "/newagent && chmod +x " + dir + "/newagent"
	for range 2 {
		if command, err := installed(t.Context(), []string{"newagent", "--acp"}, "", script, say); err != nil ||
			strings.Join(command.args, " ") != "newagent --acp" {
			t.Errorf("%v, %v", command, err)
		}
	}
	if command, err := installed(t.Context(), []string{"/bin/sh", "-c", "exec newagent 'a b'"}, "", "exit 1",
		say); err != nil || len(command.args) != 3 || len(said) != 1 {
		t.Errorf("%v, %v, %v", command, err, said)
	}
	_, err := installed(t.Context(), []string{"/bin/sh", "-c", "exec other"}, "", "echo no space >&2; exit 3", say)
	if err == nil || !strings.Contains(errors.Message(err), "no space") {
		t.Errorf("%v", err)
	}
	if _, err := installed(t.Context(), []string{"other"}, "unknown", "", say); errors.KindOf(err) != errors.Invalid {
		t.Errorf("%v", err)
	}
}

// TestInstallFromLock checks that an agent is installed from its lock once, and that Node.js must be new enough.
func TestInstallFromLock(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	program := func(name, text string) {
		testenv.WriteFile(t, dir+"/"+name, []byte("#!/bin/sh\n"+text+"\n"))
		if err := os.Chmod(dir+"/"+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program("node", "echo v20.20.2")
	program("npm", `echo "$PWD" >> `+home+`/calls; mkdir -p node_modules/.bin
		printf '#!/bin/sh\n' > node_modules/.bin/gemini; chmod +x node_modules/.bin/gemini`)
	if _, err := os.Stat(npm.ImageNode); err == nil {
		t.Skip("run it outside of the agent image: its Node.js, " + npm.ImageNode + ", would come first")
	}
	var said []string
	say := func(text string) { said = append(said, text) }
	if _, err := installed(t.Context(), []string{"gemini"}, "gemini", "", say); err == nil ||
		!strings.Contains(errors.Message(err), "this is 20.20.2") {
		t.Errorf("an old Node.js: %v", err)
	}
	program("node", "echo v22.1.0")
	for range 2 {
		p, err := installed(t.Context(), []string{"gemini", "--acp"}, "gemini", "", say)
		if err != nil || len(p.args) != 2 || !strings.HasPrefix(p.args[0], home) ||
			!strings.Contains(strings.Join(p.env, " "), home) {
			t.Errorf("%+v, %v", p, err)
		}
	}
	calls, err := os.ReadFile(home + "/calls")
	if strings.Count(string(calls), "\n") != 1 || err != nil || len(said) != 1 {
		t.Errorf("%s, %v, %v", calls, err, said)
	}
}

// TestLocks checks that the locks have exact versions, digests, and no addresses of a registry.
func TestLocks(t *testing.T) {
	t.Parallel()
	names, err := locks.ReadDir("locks")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	for _, name := range names {
		list, err := locks.ReadFile("locks/" + name.Name() + "/package.json")
		if err != nil || packages(list) == "" || strings.ContainsAny(packages(list), "^~*") {
			t.Errorf("%s: %s, %v", name.Name(), list, err)
		}
		text, err := locks.ReadFile("locks/" + name.Name() + "/package-lock.json")
		var lock struct {
			Packages map[string]struct{ Version, Resolved, Integrity string }
		}
		if err != nil || json.Unmarshal(text, &lock) != nil || len(lock.Packages) < 2 {
			t.Fatalf("%s: %v", name.Name(), err)
		}
		for path, p := range lock.Packages {
			if path != "" && (p.Integrity == "" || p.Resolved != "" || p.Version == "") {
				t.Errorf("%s: %s: %+v", name.Name(), path, p)
			}
		}
	}
}

package modal_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// TestBoundSecretsOfCommands checks that a command gets placeholders of a secret that is bound to hosts.
func TestBoundSecretsOfCommands(t *testing.T) {
	w := newWorld(t)
	const value = "a-value-that-stays-outside"
	var host binding.Host
	if err := host.UnmarshalText([]byte("api.example.org")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.vault.SetBound(t.Context(), "personal", "api", secret.Pairs{"API_TOKEN": value}, secret.Create,
		&binding.Binding{Places: []binding.Place{{Host: host}}}); err != nil {
		t.Fatal(err)
	}
	bound, err := w.sdk.Secrets.FromName(t.Context(), "api", nil)
	if err != nil {
		t.Fatal(err)
	}
	sb := w.create(&modal.SandboxCreateParams{Timeout: time.Minute})
	p, err := sb.Exec(t.Context(), []string{"sh", "-c", "echo $API_TOKEN"},
		&modal.SandboxExecParams{Secrets: []*modal.Secret{bound}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(p.Stdout); err != nil || len(out) < 2 || strings.Contains(string(out), value) {
		t.Errorf("the command has %q, %v", out, err)
	}
}

// mission: A4
func TestCommandsOfASandbox(t *testing.T) {
	w := newWorld(t)
	if _, err := w.vault.Set(t.Context(), "personal", "keys", secret.Pairs{"TOKEN": "secret-value"},
		secret.Create); err != nil {
		t.Fatal(err)
	}
	keys, err := w.sdk.Secrets.FromName(t.Context(), "keys",
		&modal.SecretFromNameParams{RequiredKeys: []string{"TOKEN"}})
	if err != nil {
		t.Fatal(err)
	}
	sb := w.create(&modal.SandboxCreateParams{Env: map[string]string{"A": "1"}, Secrets: []*modal.Secret{keys},
		Timeout: time.Minute})
	if got := w.output(sb, "sh", "-c", "echo $A $TOKEN"); got != "1 secret-value\n" {
		t.Errorf("the command said %q", got)
	}
	p, err := sb.Exec(t.Context(), []string{"sh", "-c", "cat; echo bad >&2; exit 7"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 20<<10) // more than is kept in memory
	if _, err := p.Stdin.Write(big); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(t.Context(), nil); err != nil || code != 7 {
		t.Errorf("the command ended with %d, %v", code, err)
	}
	if out, err := io.ReadAll(p.Stdout); err != nil || !bytes.Equal(out, big) {
		t.Errorf("the command echoed %d bytes of %d, %v", len(out), len(big), err)
	}
	if out, err := io.ReadAll(p.Stderr); err != nil || string(out) != "bad\n" {
		t.Errorf("standard error has %q, %v", out, err)
	}
	killed, err := sb.Exec(t.Context(), []string{"sleep", "60"}, &modal.SandboxExecParams{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if code, err := killed.Wait(t.Context(), nil); err == nil && code != 137 {
		t.Errorf("a command beyond its time limit ended with %d", code)
	}
	if _, err := sb.Exec(t.Context(), []string{"/no/such/program"}, nil); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a program that there is not: %v", err)
	}
	pty, err := sb.Exec(t.Context(), []string{"sh", "-c", "stty size; echo $TERM"}, &modal.SandboxExecParams{PTY: true})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(pty.Stdout); err != nil || !strings.HasPrefix(string(out), "24 80\r\nxterm") {
		t.Errorf("the terminal shows %q, %v", out, err)
	}
	if code, err := sb.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil || code != 137 {
		t.Errorf("a terminated sandbox ended with %d, %v", code, err)
	}
	if _, err := sb.Exec(t.Context(), []string{"true"}, nil); status.Code(err) != codes.NotFound {
		t.Errorf("a command after the end: %v", err)
	}
	if _, err := sb.Terminate(t.Context(), nil); err != nil {
		t.Errorf("terminated twice: %v", err)
	}
}

// TestASandboxEndsWithItsCommand checks that the sandbox ends with its own command, whose output and exit code remain.
func TestASandboxEndsWithItsCommand(t *testing.T) {
	w := newWorld(t)
	for script, want := range map[string]int{"echo hello; exit 0": 0, "echo hello; exit 42": 42} {
		sb := w.create(&modal.SandboxCreateParams{Command: []string{"sh", "-c", script}})
		if code, err := sb.Wait(t.Context(), nil); err != nil || code != want {
			t.Errorf("%s: ended with %d, %v", script, code, err)
		}
		if out, err := io.ReadAll(sb.Stdout); err != nil || string(out) != "hello\n" {
			t.Errorf("%s: said %q, %v", script, out, err)
		}
		if code, err := sb.Poll(t.Context(), nil); err != nil || code == nil || *code != want {
			t.Errorf("%s: poll says %v, %v", script, code, err)
		}
		entries, err := sb.Logs.Tail(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var log []string
		for e, err := range entries {
			if err != nil {
				t.Fatal(err)
			}
			log = append(log, e.Message)
		}
		if strings.Join(log, "") != "hello\n" {
			t.Errorf("the log has %q", log)
		}
	}
	echo := w.create(&modal.SandboxCreateParams{Command: []string{"cat"}})
	if _, err := echo.Stdin.Write([]byte("in and out")); err != nil {
		t.Fatal(err)
	}
	if err := echo.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(echo.Stdout); err != nil || string(out) != "in and out" {
		t.Errorf("cat said %q, %v", out, err)
	}
}

// mission: A3
func TestTimeLimitsEndWith124(t *testing.T) {
	w := newWorld(t)
	lived := w.create(&modal.SandboxCreateParams{Timeout: time.Second, Command: []string{"sleep", "60"}})
	idle := w.create(&modal.SandboxCreateParams{Timeout: time.Minute, IdleTimeout: time.Second})
	for name, sb := range map[string]*modal.Sandbox{"lifetime": lived, "idle": idle} {
		if code, err := sb.Wait(t.Context(), nil); err != nil || code != 124 {
			t.Errorf("%s: ended with %d, %v", name, code, err)
		}
	}
	oom := w.create(nil)
	all, err := w.fleet.List(t.Context(), "personal", sandboxFilter)
	if err != nil || len(all) != 1 {
		t.Fatalf("there are %d sandboxes, %v", len(all), err)
	}
	if err := w.engine.EndOOM(all[0].ID); err != nil {
		t.Fatal(err)
	}
	if code, err := oom.Wait(t.Context(), nil); err != nil || code != 137 {
		t.Errorf("out of memory: ended with %d, %v", code, err)
	}
}

func TestNamesTagsAndLists(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Name: "box", Tags: map[string]string{"team": "a"}})
	app, err := w.sdk.Apps.FromName(t.Context(), "app", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.sdk.Sandboxes.Create(t.Context(), app, w.sdk.Images.FromRegistry("base", nil),
		&modal.SandboxCreateParams{Name: "box"})
	if !errors.As(err, &modal.AlreadyExistsError{}) {
		t.Errorf("a second one of that name: %v", err)
	}
	found, err := w.sdk.Sandboxes.FromName(t.Context(), "app", "box", nil)
	if err != nil || found.SandboxID != sb.SandboxID {
		t.Errorf("by name: %v, %v", found, err)
	}
	if err := sb.SetTags(t.Context(), map[string]string{"team": "b", "x": "y"}, nil); err != nil {
		t.Fatal(err)
	}
	if tags, err := sb.GetTags(t.Context(), nil); err != nil || len(tags) != 2 || tags["team"] != "b" {
		t.Errorf("the tags are %v, %v", tags, err)
	}
	if err := sb.SetTags(t.Context(), map[string]string{"modal/app": "other"}, nil); err == nil {
		t.Error("a tag of ours was set")
	}
	for tag, want := range map[string]int{"a": 0, "b": 1} {
		n := 0
		list, err := w.sdk.Sandboxes.List(t.Context(), &modal.SandboxListParams{AppID: app.AppID,
			Tags: map[string]string{"team": tag}})
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range list {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != want {
			t.Errorf("team %s has %d sandboxes", tag, n)
		}
	}
	if _, err := w.sdk.Apps.FromName(t.Context(), "missing", nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("an app that there is not: %v", err)
	}
	if _, err := w.sdk.Sandboxes.FromName(t.Context(), "app", "missing", nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("a sandbox that there is not: %v", err)
	}
	if err := sb.ExperimentalSetName(t.Context(), "other", nil); err != nil {
		t.Errorf("another name: %v", err)
	}
}

// mission: A6
func TestACreateThatComesAgainMakesOneSandbox(t *testing.T) {
	w := newWorld(t)
	sb := w.create(nil) // makes app and image
	_ = sb
	app, err := w.control.AppGetOrCreate(w.ctx(), pb.AppGetOrCreateRequest_builder{AppName: "app"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	img, err := w.control.ImageGetOrCreate(w.ctx(), pb.ImageGetOrCreateRequest_builder{
		AppId: app.GetAppId(), Image: pb.Image_builder{DockerfileCommands: []string{"FROM base"}}.Build(),
	}.Build())
	if err != nil {
		t.Fatal(err)
	}
	req := pb.SandboxCreateV2Request_builder{AppId: app.GetAppId(),
		Definition: pb.Sandbox_builder{ImageId: img.GetImageId()}.Build()}.Build()
	ids := map[string]bool{}
	for range 3 {
		made, err := w.control.SandboxCreateV2(w.ctx("x-idempotency-key", "one"), req)
		if err != nil {
			t.Fatal(err)
		}
		ids[made.GetSandboxId()] = true
	}
	if len(ids) != 1 {
		t.Errorf("three attempts made %d sandboxes", len(ids))
	}
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	w.sdk.Close()
	w.serve()
	made, err := w.control.SandboxCreateV2(w.ctx("x-idempotency-key", "one"), req)
	if err != nil || !ids[made.GetSandboxId()] || made.GetCommandRouterAccess().GetJwt() == "" {
		t.Errorf("the next server made %s, %v", made.GetSandboxId(), err)
	}
	if again, err := w.control.SandboxCreateV2(w.ctx("x-idempotency-key", "two"), req); err != nil ||
		ids[again.GetSandboxId()] {
		t.Errorf("another request has %s, %v", again.GetSandboxId(), err)
	}
	all, err := w.fleet.List(t.Context(), "personal", sandboxFilter)
	if err != nil || len(all) != 3 {
		t.Errorf("there are %d sandboxes, %v", len(all), err)
	}
}

// mission: A4
func TestCommandsOutliveTheServer(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Command: []string{"sh", "-c",
		"echo before; read line; echo after $line; exit 3"}})
	p, err := sb.Exec(t.Context(), []string{"sh", "-c", "echo one; read line; echo two"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4)
	if _, err := io.ReadFull(p.Stdout, line); err != nil || string(line) != "one\n" {
		t.Fatalf("the command said %q, %v", line, err)
	}
	id := sb.SandboxID
	file := filepath.Join(t.TempDir(), "half")
	half, err := sb.Exec(t.Context(), []string{"/__modal/.bin/modal-sandbox-fs-tools",
		`{"WriteFile":{"path":"` + file + `"}}`}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := half.Stdin.Write([]byte("without its end")); err != nil {
		t.Fatal(err)
	}
	if err := w.server.Close(); err != nil { // no client has to send anything for that
		t.Fatal(err)
	}
	w.sdk.Close()
	w.serve()
	if _, err := os.Stat(file); err == nil {
		t.Error("half a file was written")
	}
	again, err := w.sdk.Sandboxes.FromID(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Stdin.Write([]byte("line\n")); err != nil {
		t.Fatal(err)
	}
	if code, err := again.Wait(t.Context(), nil); err != nil || code != 3 {
		t.Errorf("the sandbox ended with %d, %v", code, err)
	}
	if out, err := io.ReadAll(again.Stdout); err != nil || string(out) != "before\nafter line\n" {
		t.Errorf("the sandbox said %q, %v", out, err)
	}
}

func TestVolumesAreCommittedAndReloaded(t *testing.T) {
	w := newWorld(t)
	vol, err := w.sdk.Volumes.FromName(t.Context(), "data", &modal.VolumeFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	mount := &modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/volume": vol}}
	one, two := w.create(mount), w.create(mount)
	list := func(sb *modal.Sandbox) string { return w.output(sb, "sh", "-c", "ls volume/ | tr '\\n' ' '") }
	w.output(one, "sh", "-c", "mkdir volume/d; echo a >volume/d/f; ln -s d volume/l; chmod 750 volume/d")
	if got := list(two); got != "" {
		t.Errorf("the other sandbox sees %q before anything was committed", got)
	}
	if err := one.ReloadVolumes(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := list(two); got != "" {
		t.Errorf("the other sandbox sees %q before it has reloaded", got)
	}
	if err := two.ReloadVolumes(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := list(two) + w.output(two, "sh", "-c", "cat volume/l/f; stat -c %a volume/d"); got != "d l a\n750\n" {
		t.Errorf("the other sandbox sees %q", got)
	}
	w.output(two, "sh", "-c", "rm -r volume/d volume/l; echo b >volume/g")
	if _, err := two.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	if err := one.ReloadVolumes(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := list(one); got != "g " {
		t.Errorf("after the other sandbox has ended there is %q", got)
	}
	if _, err := w.sdk.Volumes.FromName(t.Context(), "missing-volume", nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("a volume that there is not: %v", err)
	}
	loose, err := w.sdk.Volumes.Ephemeral(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	loose.CloseEphemeral()
	if _, err := one.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	if left, err := w.db.Records().IDs(t.Context(), records.View); err != nil || len(left) != 0 {
		t.Errorf("of the copies there is left %v, %v", left, err)
	}
}

func TestFiles(t *testing.T) {
	w := newWorld(t)
	sb := w.create(nil)
	fs := sb.Filesystem
	ctx := t.Context()
	data := bytes.Repeat([]byte{0, 1, 2, 0xff}, 100<<10)
	if err := fs.WriteBytes(ctx, data, "/d/e/file", nil); err != nil {
		t.Fatal(err)
	}
	if got, err := fs.ReadBytes(ctx, "/d/e/file", nil); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes of %d, %v", len(got), len(data), err)
	}
	local := filepath.Join(t.TempDir(), "local")
	if err := os.WriteFile(local, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fs.CopyFromLocal(ctx, local, "/d/copy", nil); err != nil {
		t.Errorf("copy in: %v", err)
	}
	if info, err := fs.Stat(ctx, "/d/copy", nil); err != nil || info.Size != int64(len(data)) ||
		info.Type != modal.FileTypeFile || info.Permissions != "0644" {
		t.Errorf("stat says %+v, %v", info, err)
	}
	if list, err := fs.ListFiles(ctx, "/d", nil); err != nil || len(list) != 2 || list[0].Name != "copy" ||
		list[1].Type != modal.FileTypeDirectory {
		t.Errorf("list says %+v, %v", list, err)
	}
	no := false
	for name, err := range map[string]error{
		"NotFound":      second(fs.ReadBytes(ctx, "/none", nil)),
		"IsADirectory":  second(fs.ReadBytes(ctx, "/d", nil)),
		"NotADirectory": second(fs.ListFiles(ctx, "/d/copy", nil)),
		"PathAlreadyExists": fs.MakeDirectory(ctx, "/d",
			&modal.SandboxFilesystemMakeDirectoryParams{CreateParents: &no}),
		"DirectoryNotEmpty": fs.Remove(ctx, "/d", nil),
	} {
		if err == nil || !strings.Contains(strings.ReplaceAll(typeOf(err), "Error", ""), "SandboxFilesystem"+name) {
			t.Errorf("%s: got %T %v", name, err, err)
		}
	}
	if err := fs.Remove(ctx, "/d", &modal.SandboxFilesystemRemoveParams{Recursive: true}); err != nil {
		t.Errorf("remove: %v", err)
	}
}

package modal_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/internal/base/account"
)

// TestStreamsEndWithTheirKey checks that streams end with the key that opened them, in both directions and on both
// services, with the reason.
//
// mission: 6.10
func TestStreamsEndWithTheirKey(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Timeout: 5 * time.Minute})
	for how, life := range map[string]time.Duration{"revoked": 0, "expired": 10 * time.Second} {
		key, text, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: how, Life: life})
		if err != nil {
			t.Fatal(err)
		}
		w.id, w.secret = key.ID, text.Reveal()
		ctx, task := w.started(sb.SandboxID, pb.TaskExecStartRequest_builder{ExecId: how,
			CommandArgs:  []string{"sleep", "1000"},
			StdoutConfig: pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE})
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		output, err := w.router.TaskExecStdioRead(ctx, pb.TaskExecStdioReadRequest_builder{TaskId: task, ExecId: how,
			FileDescriptor: pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT}.Build())
		if err != nil {
			t.Fatal(err)
		}
		input, err := w.router.TaskExecStdinWriteStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := w.router.TaskExecWait(ctx, pb.TaskExecWaitRequest_builder{TaskId: task, ExecId: how}.Build())
			waiting <- err
		}()
		if life == 0 {
			if err := w.ring.Revoke(t.Context(), account.Local(), key.ID); err != nil {
				t.Fatal(err)
			}
		}
		_, err = output.Recv()
		for name, err := range map[string]error{"output": err,
			"input": input.RecvMsg(new(pb.TaskExecStdinWriteStreamResponse)), "wait": <-waiting} {
			if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "key") {
				t.Errorf("%s: the %s ends with %v", how, name, err)
			}
		}
	}
}

// TestUploadsEndWithTheirKey checks that the upload of a blob, whose URL needs no key, ends with the key that made the
// URL. The reason is in the response.
//
// mission: 6.10
func TestUploadsEndWithTheirKey(t *testing.T) {
	w := newWorld(t)
	key, secret, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "revoked"})
	if err != nil {
		t.Fatal(err)
	}
	w.id, w.secret = key.ID, secret.Reveal()
	sum := sha256.Sum256(make([]byte, 100))
	begun, err := w.control.BlobCreate(w.ctx(), pb.BlobCreateRequest_builder{
		ContentSha256Base64: base64.StdEncoding.EncodeToString(sum[:]), ContentLength: 100}.Build())
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(begun.GetMultiparts().GetItems()[0].GetUploadUrls()[0])
	if err != nil {
		t.Fatal(err)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	// The server asks for the body when it has admitted the request.
	if _, err := io.WriteString(conn, "PUT "+at.RequestURI()+" HTTP/1.1\r\nHost: "+at.Host+
		"\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"HTTP/1.1 100 Continue\r\n", "\r\n"} {
		if line, err := in.ReadString('\n'); err != nil || line != want {
			t.Fatalf("before the body: %q, %v", line, err)
		}
	}
	if _, err := io.WriteString(conn, "half"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond) // the server has read it, and waits for the rest
	if err := w.ring.Revoke(t.Context(), account.Local(), key.ID); err != nil {
		t.Fatal(err)
	}
	// The server ends an upload that is silent for a minute, also without the end of its key.
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatalf("the upload goes on after its key: %v", err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusUnauthorized ||
		!strings.Contains(string(text), "key") {
		t.Errorf("the upload has the answer %s %q", resp.Status, text)
	}
}

// TestDownloadsEndWithTheirKey checks that the download of a blob, whose client does not read, ends with the key that
// made the URL.
//
// mission: 6.10
func TestDownloadsEndWithTheirKey(t *testing.T) {
	w := newWorld(t)
	const size = 64 << 20 // more than the buffers of a connection
	id := w.blob(strings.Repeat("x", size))
	key, secret, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "revoked"})
	if err != nil {
		t.Fatal(err)
	}
	w.id, w.secret = key.ID, secret.Reveal()
	get, err := w.control.BlobGet(w.ctx(), pb.BlobGetRequest_builder{BlobId: id}.Build())
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, get.GetDownloadUrl(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := w.ring.Revoke(t.Context(), account.Local(), key.ID); err != nil {
		t.Fatal(err)
	}
	// The client reads nothing until the download must have ended: it has a second for its reason.
	time.Sleep(5 * time.Second)
	if n, err := io.Copy(io.Discard, resp.Body); err == nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %d bytes arrive, %v", resp.Status, n, err)
	}
}

package modal_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestTheFirstGeneration checks that the SDK makes the first generation's request with MODAL_SANDBOX_V2=0 and for GPUs,
// and sees by the ID that the sandbox is of the second.
func TestTheFirstGeneration(t *testing.T) {
	t.Setenv("MODAL_SANDBOX_V2", "0")
	w := newWorld(t)
	secrets, err := w.sdk.Secrets.FromMap(t.Context(), map[string]string{"SECRET": "told"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb := w.create(&modal.SandboxCreateParams{
		Name: "old", Tags: map[string]string{"team": "a"}, Env: map[string]string{"PLAIN": "seen"},
		Secrets: []*modal.Secret{secrets}, Timeout: time.Minute,
		Command: []string{"sh", "-c", "echo begun; read line; echo $line; exit 3"},
	})
	if len(sb.SandboxID) == len("sb-")+22 {
		t.Errorf("the SDK takes %s for one of the first generation", sb.SandboxID)
	}
	if got := w.output(sb, "sh", "-c", "echo $SECRET $PLAIN"); got != "told seen\n" {
		t.Errorf("a command has %q", got)
	}
	found, err := w.sdk.Sandboxes.FromName(t.Context(), "app", "old", nil)
	if err != nil || found.SandboxID != sb.SandboxID {
		t.Errorf("by its name there is %+v, %v", found, err)
	}
	count := 0
	list, err := w.sdk.Sandboxes.List(t.Context(), &modal.SandboxListParams{Tags: map[string]string{"team": "a"}})
	if err != nil {
		t.Fatal(err)
	}
	for listed, err := range list {
		if err != nil || listed.SandboxID != sb.SandboxID {
			t.Fatalf("the list has %+v, %v", listed, err)
		}
		count++
	}
	if count != 1 {
		t.Errorf("the list has %d", count)
	}
	if _, err := sb.Stdin.Write([]byte("end\n")); err != nil {
		t.Fatal(err)
	}
	if code, err := sb.Wait(t.Context(), nil); err != nil || code != 3 {
		t.Errorf("it ended with %d, %v", code, err)
	}
	if out, err := io.ReadAll(sb.Stdout); err != nil || string(out) != "begun\nend\n" {
		t.Errorf("it said %q, %v", out, err)
	}
}

// TestReadiness checks that a sandbox is ready when its probe succeeds, and not before.
//
// mission: A6
func TestReadiness(t *testing.T) {
	w := newWorld(t)
	sign := filepath.Join(t.TempDir(), "sign")
	probe, err := modal.NewExecProbe([]string{"test", "-e", sign}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb := w.create(&modal.SandboxCreateParams{ReadinessProbe: probe, Timeout: time.Minute})
	late := func(err error) bool {
		return errors.As(err, &modal.TimeoutError{}) || errors.As(err, &modal.SandboxTimeoutError{}) ||
			status.Code(err) == codes.DeadlineExceeded
	}
	if err := sb.WaitUntilReady(t.Context(), 500*time.Millisecond, nil); !late(err) {
		t.Errorf("before the sign is there: %v", err)
	}
	ready := make(chan error, 1)
	go func() { ready <- sb.WaitUntilReady(t.Context(), time.Minute, nil) }()
	w.output(sb, "touch", sign)
	if err := <-ready; err != nil {
		t.Errorf("after it: %v", err)
	}
	w.output(sb, "rm", sign) // a ready sandbox stays ready
	if err := sb.WaitUntilReady(t.Context(), time.Minute, nil); err != nil {
		t.Errorf("once more: %v", err)
	}
	if err := w.create(nil).WaitUntilReady(t.Context(), time.Minute, nil); err == nil ||
		!strings.Contains(err.Error(), "no readiness probe") {
		t.Errorf("without a probe: %v", err)
	}
	never := w.create(&modal.SandboxCreateParams{ReadinessProbe: probe, Timeout: time.Minute})
	go func() { ready <- never.WaitUntilReady(t.Context(), time.Minute, nil) }()
	if _, err := never.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	if err := <-ready; err == nil || late(err) {
		t.Errorf("one that ended before it was ready: %v", err)
	}
}

// identityOf checks a token with the keys that its issuer publishes, and returns its claims.
func identityOf(t *testing.T, token string) map[string]any {
	t.Helper()
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		t.Fatalf("the token is %q", token)
	}
	decoded := func(text string) []byte {
		t.Helper()
		data, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var head struct{ Alg, Kid string }
	claims := map[string]any{}
	if err := errors.Join(json.Unmarshal(decoded(parts[0]), &head),
		json.Unmarshal(decoded(parts[1]), &claims)); err != nil || head.Alg != "ES256" {
		t.Fatalf("the token's head is %+v, %v", head, err)
	}
	resp, err := http.Get(claims["iss"].(string) + "/.well-known/jwks.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var set struct {
		Keys []struct{ Kty, Crv, Kid, X, Y string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&set); err != nil || len(set.Keys) != 1 ||
		set.Keys[0].Kid != head.Kid || set.Keys[0].Crv != "P-256" {
		t.Fatalf("the keys are %+v, %v", set, err)
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, decoded(set.Keys[0].X)...),
		decoded(set.Keys[0].Y)...))
	if err != nil {
		t.Fatal(err)
	}
	sum, signature := sha256.Sum256([]byte(parts[0]+"."+parts[1])), decoded(parts[2])
	if len(signature) != 64 || !ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(signature[:32]),
		new(big.Int).SetBytes(signature[32:])) {
		t.Fatal("the signature is not the issuer's")
	}
	signature[0] ^= 1
	if ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
		t.Error("another signature is the issuer's too")
	}
	return claims
}

// TestIdentity checks that a sandbox's identity token proves the sandbox's identity, also with the next server's keys.
//
// mission: A7
func TestIdentity(t *testing.T) {
	w := newWorld(t)
	begin := time.Now().Add(-time.Second)
	sb := w.create(&modal.SandboxCreateParams{IncludeOidcIdentityToken: true, Timeout: 90 * time.Second})
	token := w.output(sb, "sh", "-c", "echo $MODAL_IDENTITY_TOKEN")
	claims := identityOf(t, token)
	for name, want := range map[string]any{
		"sub": "modal:workspace:personal:environment:main:app:app", "aud": "harvest", "workspace_name": "personal",
		"environment_name": "main", "app_name": "app",
	} {
		if claims[name] != want {
			t.Errorf("%s is %v, want %v", name, claims[name], want)
		}
	}
	at := func(name string) time.Time {
		t.Helper()
		seconds, _ := claims[name].(float64)
		return time.Unix(int64(seconds), 0)
	}
	if at("iat").Before(begin) || at("nbf").After(time.Now()) || at("exp").Sub(at("iat")) != 90*time.Second {
		t.Errorf("it is good from %v and %v to %v", at("iat"), at("nbf"), at("exp"))
	}
	if got := w.output(w.create(nil), "sh", "-c", "echo $MODAL_IDENTITY_TOKEN"); got != "\n" {
		t.Errorf("one that has not asked for a token has %q", got)
	}
	other := identityOf(t, w.output(w.create(&modal.SandboxCreateParams{IncludeOidcIdentityToken: true}), "sh", "-c",
		"echo $MODAL_IDENTITY_TOKEN"))
	if other["exp"].(float64)-other["iat"].(float64) != 300 {
		t.Errorf("without a time limit it is good for %v s", other["exp"].(float64)-other["iat"].(float64))
	}
}

// TestPings checks that connections survive clients' pings, which are more frequent than gRPC's servers allow by
// default, also when the connection is idle.
func TestPings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(64 << 10)
		newWorldAt(t, l)
		conn, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		framer := http2.NewFramer(conn, conn)
		if err := framer.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		for i := range byte(5) {
			if i > 0 {
				time.Sleep(5500 * time.Millisecond)
			}
			if err := framer.WritePing(false, [8]byte{i + 1}); err != nil {
				t.Fatal(err)
			}
			if err := answered(framer, i+1); err != nil {
				t.Fatalf("after ping %d: %v", i, err)
			}
		}
	})
}

// answered reads frames until the answer to a ping.
func answered(framer *http2.Framer, ping byte) error {
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			return errors.Errorf("the server ends the connection: %s %s", f.ErrCode, f.DebugData())
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if f.IsAck() && f.Data[0] == ping {
				return nil
			}
			if !f.IsAck() {
				err = framer.WritePing(true, f.Data)
			}
		}
		if err != nil {
			return err
		}
	}
}

package credentials

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha1" //nolint:gosec // npm's registry asks for it
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/test/host"
)

// The values of the secrets, which are in no program. That of pip has to be escaped in addresses.
var (
	gitToken = "ghp_" + random()
	npmToken = "npm_" + random()
	pipToken = "Vb6/nM+2qW&8e=R4%tY9?" + random() + "#3aS5dF"
	apiToken = random()
	// nextToken is the value that follows that of the API.
	nextToken = random()
)

// random returns 36 letters and digits.
func random() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, 36)
	for i := range b {
		b[i] = alphabet[rand.IntN(len(alphabet))]
	}
	return string(b)
}

// signature is the parameter of an address that carries its own credential, as those of object storage.
const signature = "X-Amz-Signature=0123456789abcdef"

// handler returns the handler of a host.
func (w *world) handler(name string) http.Handler {
	switch name {
	case gitHost:
		return w.git()
	case npmHost:
		return http.HandlerFunc(registry)
	case pipHost:
		return http.HandlerFunc(index)
	case filesHost:
		return http.HandlerFunc(w.files)
	}
	return w.api()
}

// denied answers a request without its credential.
func denied(rw http.ResponseWriter, challenge string) {
	rw.Header().Set("WWW-Authenticate", challenge)
	http.Error(rw, "who are you?", http.StatusUnauthorized)
}

// git serves repositories, the API that gh asks, and that of git-lfs, whose files are at another host.
func (w *world) git() http.Handler {
	w.repos = host.NewGit(w.t, gitToken)
	w.repos.Commit("project", map[string]string{"README.md": "main\n"})
	w.branches()
	repositories := w.repos.Server.Config.Handler
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		bearer := strings.TrimPrefix(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), "token ")
		switch {
		case password != gitToken && bearer != gitToken:
			denied(rw, `Basic realm="git"`)
		case strings.HasPrefix(r.URL.Path, "/large/"):
			http.Redirect(rw, r, "https://"+filesHost+r.URL.Path+"?"+signature, http.StatusFound)
		case r.URL.Path == "/api/v3/user":
			rw.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(rw, `{"login":"somebody"}`)
		case strings.HasSuffix(r.URL.Path, "/info/lfs/objects/batch"):
			batch(rw, r)
		case strings.HasSuffix(r.URL.Path, "/info/lfs/locks/verify"):
			http.NotFound(rw, r) // this host has no locks
		default:
			r.SetBasicAuth("git", gitToken)
			repositories.ServeHTTP(rw, r)
		}
	})
}

// branches makes so many branches that git compresses its requests, and allows to push.
func (w *world) branches() {
	w.t.Helper()
	var b strings.Builder
	for i := range 60 {
		text := fmt.Sprintf("branch %d\n", i)
		fmt.Fprintf(&b, "commit refs/heads/n%d\ncommitter T <t@example.org> 0 +0000\ndata 4\nwork"+
			"M 644 inline README.md\ndata %d\n%s\n", i, len(text), text)
	}
	cmd := exec.CommandContext(w.t.Context(), "git", "fast-import", "--quiet")
	cmd.Dir = filepath.Join(w.repos.Dir, "project.git")
	cmd.Stdin = strings.NewReader(b.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("make branches: %v: %s", err, out)
	}
	host.RunGit(w.t, cmd.Dir, "config", "http.receivepack", "true")
}

// batch says where large files are (https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md). As those of Gitea,
// its answers repeat the credential.
func batch(rw http.ResponseWriter, r *http.Request) {
	var asked struct {
		Operation string           `json:"operation"`
		Objects   []map[string]any `json:"objects"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(rw, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	for _, o := range asked.Objects {
		action := map[string]any{"href": fmt.Sprintf("https://%s/large/%v?%s", filesHost, o["oid"], signature)}
		if asked.Operation == "download" {
			action = map[string]any{"href": fmt.Sprintf("https://%s/large/%v", gitHost, o["oid"]),
				"header": map[string]string{"Authorization": r.Header.Get("Authorization")}}
		}
		o["authenticated"], o["actions"] = true, map[string]any{asked.Operation: action}
	}
	rw.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(rw).Encode(map[string]any{"transfer": "basic", "objects": asked.Objects})
}

// files serves files whose address is signed. Like object storage, it refuses a second credential.
func (w *world) files(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case r.Header.Get("Authorization") != "" || !strings.Contains(r.URL.RawQuery, signature):
		http.Error(rw, "one signature, and no other credential", http.StatusBadRequest)
	case r.Method == http.MethodPut:
		b, _ := io.ReadAll(r.Body)
		w.large[r.URL.Path] = b
	case strings.HasSuffix(r.URL.Path, ".tgz"):
		_, _ = rw.Write(tarball())
	case w.large[r.URL.Path] == nil:
		http.NotFound(rw, r)
	default:
		_, _ = rw.Write(w.large[r.URL.Path])
	}
}

// registry is one of npm. The files of its packages are at another host: those of "moved" by a redirect.
func registry(rw http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+npmToken {
		denied(rw, "Bearer")
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	at := "https://" + filesHost + "/" + name + ".tgz?" + signature
	switch name {
	case "moved/file":
		http.Redirect(rw, r, strings.Replace(at, "/moved/file", "/moved", 1), http.StatusFound)
		return
	case "moved":
		at = "https://" + npmHost + "/moved/file"
	case "direct":
	default:
		http.NotFound(rw, r)
		return
	}
	sum := sha1.Sum(tarball()) //nolint:gosec // see above
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(map[string]any{"name": name, "dist-tags": map[string]string{"latest": "1.0.0"},
		"versions": map[string]any{"1.0.0": map[string]any{"name": name, "version": "1.0.0",
			"dist": map[string]string{"tarball": at, "shasum": fmt.Sprintf("%x", sum)}}}})
}

// tarball is a package for npm.
func tarball() []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for name, text := range map[string]string{"package/package.json": `{"name":"it","version":"1.0.0"}`} {
		_ = t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		_, _ = io.WriteString(t, text)
	}
	_, _ = t.Close(), z.Close()
	return b.Bytes()
}

// index is one of pip.
func index(rw http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	const file = "widget-1.0-py3-none-any.whl"
	switch {
	case user != "me@example.org" || password != pipToken:
		denied(rw, `Basic realm="pip"`)
	case r.URL.Path == "/simple/widget/":
		rw.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(rw, `<a href="/files/%s#sha256=%x">%s</a>`, file, sha256.Sum256(wheel()), file)
	case r.URL.Path == "/files/"+file:
		_, _ = rw.Write(wheel())
	default:
		http.NotFound(rw, r)
	}
}

// wheel is a package for pip.
var wheel = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	const info = "widget-1.0.dist-info/"
	for _, file := range [][2]string{{"widget.py", "answer = 42\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: widget\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", "widget.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"}} {
		f, _ := z.Create(file[0])
		_, _ = io.WriteString(f, file[1])
	}
	_ = z.Close()
	return b.Bytes()
})

// large is a text for answers that are compressed.
var large = strings.Repeat("the quick brown fox jumps over the lazy dog\n", 2000)

// authorized reports whether a request has the value in one of the forms of an API.
func (w *world) authorized(r *http.Request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.Header.Get("Authorization") == "Bearer "+w.accepted || r.Header.Get("X-Api-Key") == w.accepted ||
		r.URL.Query().Get("key") == w.accepted
}

// accept changes the value that the API accepts.
func (w *world) accept(value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accepted = value
}

// api is the API of a service.
func (w *world) api() http.Handler {
	calls := calls()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/redirect", func(rw http.ResponseWriter, r *http.Request) {
		_, to, _ := strings.Cut(r.URL.RawQuery, "to=")
		http.Redirect(rw, r, to, http.StatusFound)
	})
	mux.HandleFunc("/v1/check", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(rw, "%s authorized\n", r.Proto)
	})
	mux.HandleFunc("/v1/echo", func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		all := maps.Clone(r.Header)
		all["Body"] = []string{string(b)}
		_ = json.NewEncoder(rw).Encode(all)
	})
	mux.HandleFunc("/v1/large", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/plain")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			_, _ = io.WriteString(rw, large)
			return
		}
		rw.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(rw)
		_, _ = io.WriteString(z, large)
		_ = z.Close()
	})
	mux.HandleFunc("/v1/stream", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(rw, "data: event %d\n\n", i)
			_ = http.NewResponseController(rw).Flush()
		}
	})
	mux.HandleFunc("/v1/socket", func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, append([]byte("echo "), b...)) != nil {
				return
			}
		}
	})
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
			calls.ServeHTTP(rw, r)
		case !w.authorized(r):
			denied(rw, "Bearer")
		default:
			mux.ServeHTTP(rw, r)
		}
	})
}

// calls is the health service of gRPC, for clients with the value.
func calls() http.Handler {
	check := func(ctx context.Context) error {
		md, _ := metadata.FromIncomingContext(ctx)
		if strings.Join(md.Get("authorization"), " ") != "Bearer "+apiToken {
			return status.Error(codes.Unauthenticated, "who are you?")
		}
		return nil
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
		next grpc.UnaryHandler) (any, error) {
		if err := check(ctx); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}), grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo,
		next grpc.StreamHandler) error {
		if err := check(ss.Context()); err != nil {
			return err
		}
		return next(srv, ss)
	}))
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	return s
}

package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
)

// mission: A4, F1
func TestFiles(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	const files = "/v1/sandboxes/box/files"
	resp, body := w.do("PUT", files+"?path=/in/dir/file.txt&mode=750", "0123456789")
	if made := parse[api.File](t, body); resp.StatusCode != 200 || made.Size != 10 || made.Kind != "file" ||
		made.Mode&0o777 != 0o750 || made.Path != "/in/dir/file.txt" {
		t.Fatalf("write: %s %s", resp.Status, body)
	}
	resp, body = w.do("GET", files+"?path=/in/dir/file.txt", "")
	if body != "0123456789" || resp.Header.Get("Content-Type") != "application/octet-stream" ||
		resp.Header.Get("Content-Disposition") != "attachment" || resp.ContentLength != 10 {
		t.Errorf("read: %q %v", body, resp.Header)
	}
	for byteRange, want := range map[string]string{"bytes=2-4": "234", "bytes=7-": "789", "bytes=-3": "789",
		"bytes=0-0": "0", "bytes=4-99": "456789"} {
		if resp, got := w.do("GET", files+"?path=/in/dir/file.txt", "", "Range", byteRange); resp.StatusCode != 206 ||
			got != want {
			t.Errorf("%s: %s %q", byteRange, resp.Status, got)
		}
	}
	if resp, _ := w.do("GET", files+"?path=/in/dir/file.txt", "", "Range", "bytes=10-"); resp.StatusCode != 416 {
		t.Errorf("beyond the end: %s", resp.Status)
	}
	if again, _ := w.do("GET", files+"?path=/in/dir/file.txt", "", "If-None-Match",
		resp.Header.Get("ETag")); again.StatusCode != 304 {
		t.Errorf("not modified: %s", again.Status)
	}
	if resp, got := w.do("HEAD", files+"?path=/in/dir/file.txt", ""); resp.StatusCode != 200 || got != "" ||
		resp.ContentLength != 10 {
		t.Errorf("HEAD: %s", resp.Status)
	}
	// A file that is overwritten keeps its mode.
	if _, body := w.do("PUT", files+"?path=/in/dir/file.txt", "new"); parse[api.File](t, body).Mode&0o777 != 0o750 ||
		parse[api.File](t, body).Size != 3 {
		t.Errorf("written over: %s", body)
	}
	w.want(200, "PUT", files+"?path=/in/dir/empty", "")
	if _, body := w.do("GET", files+"?path=/in/dir/empty", ""); body != "" {
		t.Errorf("empty: %q", body)
	}
	resp, body = w.do("POST", files+"/mkdir", `{"path":"/in/a/b","parents":true}`)
	if made := parse[api.File](t, body); resp.StatusCode != 201 || made.Kind != "directory" || made.Path != "/in/a/b" {
		t.Errorf("mkdir: %s %s", resp.Status, body)
	}
	w.want(409, "POST", files+"/mkdir", `{"path":"/in/a"}`)
	w.want(404, "POST", files+"/mkdir", `{"path":"/in/none/b"}`)
	_, body = w.do("POST", files+"/move", `{"from":"/in/dir/empty","to":"/in/a/moved"}`)
	if moved := parse[api.File](t, body); moved.Path != "/in/a/moved" {
		t.Errorf("move: %s", body)
	}
	w.want(409, "POST", files+"/move", `{"from":"/in/dir/file.txt","to":"/in/a/moved"}`)
	w.want(409, "POST", files+"/move", `{"from":"/in/dir/file.txt","to":"/in/a","overwrite":true}`)
	w.want(404, "POST", files+"/move", `{"from":"/in/none","to":"/in/x"}`)
	w.want(200, "POST", files+"/move", `{"from":"/in/dir/file.txt","to":"/in/a/moved","overwrite":true}`)
	_, body = w.do("GET", files+"/list?path=/in&limit=1", "")
	page := parse[api.List[api.File]](t, body)
	if len(page.Data) != 1 || page.Data[0].Name != "a" || page.Data[0].Kind != "directory" || page.NextCursor == "" {
		t.Errorf("list: %s", body)
	}
	if _, body := w.do("GET", files+"/list?path=/in&cursor="+page.NextCursor, ""); parse[api.List[api.File]](t,
		body).Data[0].Name != "dir" {
		t.Errorf("the next page: %s", body)
	}
	_, body = w.do("GET", files+"/stat?path=/in/a/moved", "")
	if found := parse[api.File](t, body); found.Size != 3 || found.Modified.IsZero() {
		t.Errorf("stat: %s", body)
	}
	w.want(409, "DELETE", files+"?path=/in", "")
	w.want(204, "DELETE", files+"?path=/in/dir", "")
	w.want(204, "DELETE", files+"?path=/in&recursive=true", "")
	w.want(404, "DELETE", files+"?path=/in&recursive=true", "")
}

// tooLarge announces a file that is one byte too large, and sends none of it. The server must refuse it.
func (w *world) tooLarge(path string) {
	w.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", path,
		int64(api.MaxFile)+1); err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if p := parse[api.Problem](w.t, string(body)); err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge ||
		!strings.Contains(p.Detail, "5368709121 bytes") || p.Remedy == "" {
		w.t.Errorf("a file that is too large: %s %s, %v", resp.Status, body, err)
	}
}

// mission: 6.8, F1
func TestBadFiles(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	const files = "/v1/sandboxes/box/files"
	w.want(201, "POST", files+"/mkdir", `{"path":"/dir"}`)
	for _, c := range []struct {
		want               int
		method, path, body string
	}{
		{404, "GET", "?path=/none", ""}, {400, "GET", "?path=/dir", ""}, {400, "GET", "?path=relative", ""},
		{400, "GET", "", ""}, {400, "GET", "?path=/a%00b", ""},
		{404, "GET", "/stat?path=/none", ""}, {404, "GET", "/list?path=/none", ""},
		{404, "GET", "/watch?path=/none", ""}, {400, "GET", "/watch?path=x", ""},
		{409, "PUT", "?path=/dir", "x"}, {400, "PUT", "?path=/dir/", "x"}, {400, "PUT", "?path=/", "x"},
		{400, "PUT", "?path=x", "x"}, {400, "PUT", "?path=/x&mode=9", "x"},
		{400, "DELETE", "?path=/&recursive=true", ""}, {400, "DELETE", "?path=/dir&recursive=perhaps", ""},
		{400, "POST", "/move", "{}"}, {400, "POST", "/mkdir", `{"path":"/x","mode":1}`},
	} {
		if resp, body := w.do(c.method, files+c.path, c.body); resp.StatusCode != c.want {
			t.Errorf("%s %s: %s %s", c.method, c.path, resp.Status, body)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), "PUT", w.url+files+"?path=/x",
		io.MultiReader(strings.NewReader("of no known size")))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusLengthRequired {
		t.Errorf("no length: %v %v", resp, err)
	}
	w.tooLarge(files + "?path=/x")
	// An interrupted write leaves nothing, and the old content stays.
	w.want(200, "PUT", files+"?path=/dir/kept", "before")
	w.engine.FailNext(fake.OpCopyIn, errors.Errorf("planned"))
	w.want(500, "PUT", files+"?path=/dir/kept", "after")
	if _, body := w.do("GET", files+"?path=/dir/kept", ""); body != "before" {
		t.Errorf("it is %q", body)
	}
	if _, body := w.do("GET", files+"/list?path=/dir", ""); len(parse[api.List[api.File]](t, body).Data) != 1 {
		t.Errorf("left: %s", body)
	}
	// No path leaves the sandbox.
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.want(200, "POST", "/v1/sandboxes/box/exec", `{"args":["ln","-s","`+outside+`","link"]}`)
	for _, path := range []string{outside, "/../../../../../../../" + outside, "/link", "/link/../x"} {
		if resp, body := w.do("GET", files+"?path="+path, ""); resp.StatusCode == 200 ||
			strings.Contains(body, "secret\"") {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	w.as(account.Request{Account: "acme"}).want(404, "PUT", files+"?path=/x", "x")
}

// mission: E10
func TestWatch(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	const files = "/v1/sandboxes/box/files"
	w.want(201, "POST", files+"/mkdir", `{"path":"/top"}`)
	req, err := http.NewRequestWithContext(t.Context(), "GET", w.url+files+"/watch?path=/top&recursive=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	changes := make(chan api.FileChange, 100)
	go func() {
		defer close(changes)
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var c api.FileChange
				if err := json.Unmarshal([]byte(data), &c); err == nil {
					changes <- c
				}
			}
		}
	}()
	expect := func(kind, suffix string) {
		t.Helper()
		for c := range changes {
			if c.Kind == kind && strings.HasSuffix(c.Path, suffix) {
				return
			}
		}
		t.Fatalf("the stream ended without %s %s", kind, suffix)
	}
	expect("ready", "")
	w.want(201, "POST", files+"/mkdir", `{"path":"/top/sub"}`)
	expect("created", "top/sub")
	w.want(200, "PUT", files+"?path=/top/sub/file", "x")
	expect("created", "top/sub/file")
	w.want(200, "PUT", files+"?path=/top/sub/file", "y") // which replaces it
	expect("changed", "top/sub/file")
	w.want(204, "DELETE", files+"?path=/top/sub/file", "")
	expect("removed", "top/sub/file")
	w.want(204, "DELETE", files+"?path=/top&recursive=true", "")
	expect("removed", "top")
	for range changes { // the watch ends with its directory
	}
}

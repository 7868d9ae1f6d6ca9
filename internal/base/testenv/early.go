package testenv

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
)

// AnswerEarly is an http.HandlerFunc that begins its answer before the end of the request, and ends it with the body
// of the request.
func AnswerEarly(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex()
	fmt.Fprint(w, "early\n")
	_ = rc.Flush()
	body, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s, %v\n", body, err)
}

// EarlyAnswer sends a POST request to a URL of AnswerEarly, such as one behind a proxy. It sends the end of the request
// after the beginning of the answer, and fails the test if a part of either is lost. Header has pairs.
func EarlyAnswer(t testing.TB, url string, header ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	defer cancel()
	body, more := io.Pipe()
	defer more.Close()
	req, err := http.NewRequestWithContext(ctx, "POST", url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		fmt.Fprint(more, "begin ")
	}()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); line != "early\n" {
		t.Fatalf("the answer begins with %q, %v", line, err)
	}
	<-begun // the answer may be faster
	fmt.Fprint(more, "end")
	more.Close()
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "begin end, <nil>\n" {
		t.Errorf("the rest of the answer is %q, %v", rest, err)
	}
}

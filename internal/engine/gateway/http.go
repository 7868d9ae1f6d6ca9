package gateway

import (
	"net"
	"net/url"
	"strconv"
	"strings"
)

// head handles a request head. It refuses heads that servers interpret differently, because the server might
// see another host name than the gateway.
func (i *Inspector) head() (int, error) {
	end := i.index("\r\n\r\n")
	if end < 0 {
		if len(i.held) > maxHeld || bareBreak(i.held[max(i.seen-2, 0):]) {
			return 0, malformed("an HTTP request")
		}
		return 0, nil
	}
	text := string(i.held[:end])
	if bareBreak(i.held[:end]) || strings.ContainsRune(text, 0) {
		return 0, malformed("an HTTP request")
	}
	lines := strings.Split(text, "\r\n")
	h, ok := parseHead(lines[1:])
	if !ok {
		return 0, malformed("an HTTP request")
	}
	method, target, ok := requestLine(lines[0])
	if !ok {
		return 0, malformed("an HTTP request")
	}
	if err := i.requestNames(method, target, h); err != nil {
		return 0, err
	}
	if method == "CONNECT" && (h.length > 0 || h.chunked) {
		return 0, malformed("an HTTP request")
	}
	// If the server accepts CONNECT or Upgrade, another protocol follows, under the same rules. Otherwise the
	// next request follows.
	i.http = method != "CONNECT" && !h.upgrade
	if h.chunked {
		i.step = i.chunkSize
	} else {
		i.pass, i.step = h.length, i.start
	}
	return end + 4, nil
}

// bareBreak reports whether b contains a CR or an LF that is not part of a CRLF. The last byte may be a CR
// whose LF has not arrived yet. The first may be an LF whose CR came before.
func bareBreak(b []byte) bool {
	for n, c := range b {
		if c == '\n' && n > 0 && b[n-1] != '\r' || c == '\r' && n+1 < len(b) && b[n+1] != '\n' {
			return true
		}
	}
	return false
}

func requestLine(line string) (method, target string, ok bool) {
	f := strings.Split(line, " ")
	if len(f) != 3 || f[0] == "" || f[1] == "" || strings.ContainsRune(line, '\t') || f[2] != "HTTP/1.1" &&
		f[2] != "HTTP/1.0" {
		return "", "", false
	}
	return f[0], f[1], true
}

// requestHead holds the relevant header fields of a request.
type requestHead struct {
	host    string
	hosts   int
	length  int64
	chunked bool
	upgrade bool
}

// parseHead parses header fields. It returns false if they are ambiguous.
func parseHead(lines []string) (h requestHead, ok bool) {
	lengths := 0
	for _, line := range lines {
		name, value, colon := strings.Cut(line, ":")
		if !colon || name == "" || strings.ContainsFunc(name, notToken) {
			return h, false // this includes continuation lines and a space before the colon
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "host":
			h.host = value
			h.hosts++
		case "content-length":
			n, err := strconv.ParseUint(value, 10, 62)
			if err != nil || lengths > 0 {
				return h, false
			}
			h.length = int64(n)
			lengths++
		case "transfer-encoding":
			if h.chunked || !strings.EqualFold(value, "chunked") {
				return h, false
			}
			h.chunked = true
		case "upgrade":
			h.upgrade = true
		}
	}
	return h, h.hosts <= 1 && (lengths == 0 || !h.chunked)
}

func notToken(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}

// requestNames decides on all host names of a request.
func (i *Inspector) requestNames(method, target string, h requestHead) error {
	var names []string
	if h.hosts == 1 && h.host != "" {
		names = append(names, h.host)
	}
	switch {
	case method == "CONNECT":
		names = append(names, target)
	case !strings.HasPrefix(target, "/") && target != "*":
		u, err := url.Parse(target)
		if err != nil || u.Host == "" || u.User != nil {
			return malformed("an HTTP request")
		}
		names = append(names, u.Host)
	}
	if len(names) == 0 {
		return i.hidden("the HTTP request does not name a server")
	}
	for _, n := range names {
		name, port, ok := hostOf(n)
		if !ok {
			return malformed("an HTTP request")
		}
		if method != "CONNECT" {
			port = 0 // the connection's is the one that counts
		}
		if err := i.name(name, port); err != nil {
			return err
		}
	}
	if i.over != nil {
		i.over.Connect = method == "CONNECT"
	}
	return nil
}

// hostOf returns the host of "host", "host:port", "[address]" or "[address]:port", and the port or 0.
func hostOf(s string) (host string, port uint16, ok bool) {
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		return s[1 : len(s)-1], 0, true
	}
	if !strings.Contains(s, ":") {
		return s, 0, s != ""
	}
	host, digits, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return "", 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil && digits != "" {
		return "", 0, false
	}
	return host, uint16(n), true
}

// maxChunkLine limits the length of a chunk's size line with its extensions, and of a trailer line.
const maxChunkLine = 4 << 10

// chunkLine returns the line at the beginning of held without its CRLF, and its length including the CRLF, or 0
// if it is incomplete.
func (i *Inspector) chunkLine() (string, int, error) {
	end := i.index("\r\n")
	if end > maxChunkLine || end < 0 && len(i.held) > maxChunkLine+2 || bareBreak(i.held[:max(end, 0)]) {
		return "", 0, malformed("an HTTP request")
	}
	if end < 0 {
		return "", 0, nil
	}
	return string(i.held[:end]), end + 2, nil
}

// chunkSize handles the size line before a chunk.
func (i *Inspector) chunkSize() (int, error) {
	line, n, err := i.chunkLine()
	if n == 0 || err != nil {
		return 0, err
	}
	digits, _, _ := strings.Cut(line, ";")
	size, perr := strconv.ParseUint(strings.TrimRight(digits, " \t"), 16, 62)
	if perr != nil {
		return 0, malformed("an HTTP request")
	}
	if size == 0 {
		i.step = i.trailer
		return n, nil
	}
	i.pass, i.step = int64(size), i.chunkEnd
	return n, nil
}

// chunkEnd handles the CRLF after a chunk.
func (i *Inspector) chunkEnd() (int, error) {
	line, n, err := i.chunkLine()
	if n == 0 || err != nil {
		return 0, err
	}
	if line != "" {
		return 0, malformed("an HTTP request")
	}
	i.step = i.chunkSize
	return n, nil
}

// trailer handles a line after the last chunk. An empty line ends the request.
func (i *Inspector) trailer() (int, error) {
	line, n, err := i.chunkLine()
	if n == 0 || err != nil {
		return 0, err
	}
	if line == "" {
		i.step = i.start
	}
	return n, nil
}

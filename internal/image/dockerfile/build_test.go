package dockerfile

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/image"
)

// mission: B2
func TestRunAndCopy(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	dir := b.context(map[string]string{"a.txt": "A\n", "src/b.txt": "B\n", "src/deep/c.txt": "C\n",
		"src/link": "->b.txt"})
	text := `FROM tiny
ARG WHO=world
ENV GREETING="hello $WHO"
WORKDIR /app/data
COPY a.txt .
COPY --chown=app --chmod=600 src /app/src
RUN echo "$GREETING" >out && echo 2 >/two && rm a.txt
RUN echo more >>out; mv /two /three; cat /app/src/b.txt >/dev/null
USER app
RUN id -u >/tmp/uid
EXPOSE 8080 53/udp
LABEL x=y
CMD ["./run"]
`
	img := b.build(t, text, image.BuildOptions{Context: dir})
	img.want(map[string]string{
		"/app/data/out": "hello world\nmore\n|644 0 0", "/app/data/a.txt": "", "/two": "", "/three": "2\n",
		"/app/src/b.txt":      "B\n|600 1000 1001",
		"/app/src/deep/c.txt": "C\n", "/app/src/link": "->b.txt", "/tmp/uid": "1000\n|644 1000 1001",
	})
	if c := img.config; c.User != "app" || c.Dir != "/app/data" || strings.Join(c.Ports, " ") != "53/udp 8080/tcp" ||
		c.Labels["x"] != "y" ||
		c.Labels["a"] != "1" || c.Env["GREETING"] != "hello world" || c.Env["WHO"] != "" || c.Cmd[0] != "./run" {
		t.Errorf("got %+v", c)
	}
	starts := b.runner.starts()
	if starts != 1 {
		t.Errorf("%d machines were started, want 1", starts)
	}
	b.build(t, text, image.BuildOptions{Context: dir})
	if n := b.runner.starts() - starts; n != 0 {
		t.Errorf("a second build started %d machines", n)
	}
}

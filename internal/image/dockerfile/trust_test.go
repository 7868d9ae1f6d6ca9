package dockerfile

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/image"
)

// TestTrustIsNoPartOfTheDockerfile checks that commands have the variables that Harvest added to an image, and that a
// Dockerfile sees only those of the image's author: a value that it sets is its own, even if it equals the added one.
//
// mission: B2
func TestTrustIsNoPartOfTheDockerfile(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	b.lib.add("trusting", image.Config{Env: map[string]string{"PATH": "/bin", "PIP_CERT": "/added",
		"SSL_CERT_FILE": "/added", "CURL_CA_BUNDLE": "/added", "OTHER": "/added"},
		Trust: []string{"CURL_CA_BUNDLE", "PIP_CERT", "SSL_CERT_FILE"}}, tiny(t))
	img := b.build(t, `FROM trusting AS one
RUN echo $PIP_CERT $SSL_CERT_FILE $CURL_CA_BUNDLE >/first
ENV COPY=x$PIP_CERT CURL_CA_BUNDLE=/added
RUN echo $PIP_CERT >/second
FROM one
ENV SSL_CERT_FILE=/own
COPY --link --from=one /first /copied
RUN echo $PIP_CERT $SSL_CERT_FILE $CURL_CA_BUNDLE >/third
`, image.BuildOptions{})
	img.want(map[string]string{"first": "/added /added /added\n", "copied": "/added /added /added\n",
		"second": "/added\n", "third": "/added /own /added\n"})
	own := map[string]string{"PATH": "/bin", "COPY": "x", "CURL_CA_BUNDLE": "/added", "SSL_CERT_FILE": "/own",
		"OTHER": "/added"}
	if diff := cmp.Diff(own, img.config.OwnEnv()); diff != "" {
		t.Errorf("the author's environment (-want +got):\n%s", diff)
	}
	own["PIP_CERT"] = "/added"
	if diff := cmp.Diff(own, img.config.Env); diff != "" {
		t.Errorf("the environment (-want +got):\n%s", diff)
	}
	b.lib.add("derived", img.config, tiny(t))
	again := b.build(t, "FROM derived\nENV MORE=1\n", image.BuildOptions{})
	want := maps.Clone(own)
	want["MORE"] = "1"
	if diff := cmp.Diff(want, again.config.Env); diff != "" {
		t.Errorf("the environment of an image on top (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"PIP_CERT"}, again.config.Trust); diff != "" {
		t.Errorf("the added variables of an image on top (-want +got):\n%s", diff)
	}
	if none := b.build(t, "FROM scratch\nCOPY --from=trusting /bin/sh /sh\n",
		image.BuildOptions{}); none.config.Trust != nil || none.config.Env["PIP_CERT"] != "" {
		t.Errorf("an empty stage has %+v", none.config)
	}
}

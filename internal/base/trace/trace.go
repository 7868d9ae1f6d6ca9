// Package trace sends OpenTelemetry traces of the server's operations to a collector, over OTLP with HTTP, if
// the environment names one. Without a collector, spans cost nothing.
//
// The environment variables are the standard's (https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/). OpenTelemetry's exporter reads
// them, too, but ignores invalid values.
package trace

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// last is how long Open's shutdown function waits for the last spans to be sent.
const last = 5 * time.Second

// Open starts to send traces if the environment names a collector. It returns a function that sends the rest
// and stops, nil without a collector. Invalid if a variable has an invalid value. The sampler and the sizes of
// batches are read from the process's own environment.
func Open(ctx context.Context, env func(string) string, version string) (func(context.Context), error) {
	to, err := configure(env)
	if err != nil || to == nil {
		return nil, err
	}
	e, err := to.exporter(ctx)
	if err != nil {
		return nil, errors.Wrapf(err, "open the exporter of traces")
	}
	what, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "harvest"),
		attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil {
		return nil, errors.Remedy(errors.Explainf(err, errors.Invalid, "OTEL_RESOURCE_ATTRIBUTES cannot be read"),
			"write it as name=value, with commas between")
	}
	ctx = context.WithoutCancel(ctx)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logf.Warnf(ctx, "traces: %v", err) }))
	provider := sdk.NewTracerProvider(sdk.WithBatcher(e), sdk.WithResource(what))
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	logf.Infof(ctx, "traces go to %s", to.url.Redacted())
	return func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, last)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			logf.Warnf(ctx, "send the last traces: %v", err)
		}
	}, nil
}

// collector is the receiver of traces.
type collector struct {
	url     *url.URL
	headers map[string]string
	timeout time.Duration // of a batch, with retries
	roots   *x509.CertPool
}

// exporter returns the client of the collector, which retries if the collector says that it is overloaded or not ready.
func (c *collector) exporter(ctx context.Context) (sdk.SpanExporter, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
	if c.roots != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: c.roots, MinVersion: tls.VersionTLS12}
	}
	return otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(c.url.String()), otlptracehttp.WithHeaders(c.headers),
		otlptracehttp.WithCompression(otlptracehttp.NoCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: time.Second,
			MaxInterval: c.timeout, MaxElapsedTime: c.timeout}),
		// Headers usually have a key: they are not for other addresses.
		otlptracehttp.WithHTTPClient(&http.Client{Transport: transport, Timeout: c.timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}))
}

// configure returns the collector that the environment describes, nil without one.
func configure(env func(string) string) (*collector, error) {
	get := func(name string) string { // the variable for traces, or else the general one
		if v := env("OTEL_EXPORTER_OTLP_TRACES_" + name); v != "" {
			return v
		}
		return env("OTEL_EXPORTER_OTLP_" + name)
	}
	if disabled, _ := strconv.ParseBool(env("OTEL_SDK_DISABLED")); disabled || get("ENDPOINT") == "" ||
		env("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	if kind := env("OTEL_TRACES_EXPORTER"); kind != "" && kind != "otlp" {
		return nil, wrong("OTEL_TRACES_EXPORTER", kind, "otlp or none")
	}
	if protocol := get("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, wrong("OTEL_EXPORTER_OTLP_PROTOCOL", protocol,
			"http/protobuf, and the endpoint for it, whose port is 4318 as a rule")
	}
	u, err := url.Parse(get("ENDPOINT"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		// The error omits the URL, which may contain a password.
		return nil, wrong("OTEL_EXPORTER_OTLP_ENDPOINT", "not a URL", "a URL such as http://127.0.0.1:4318")
	}
	if env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		u = u.JoinPath("v1", "traces")
	}
	c := &collector{url: u, headers: map[string]string{}, timeout: 10 * time.Second}
	if text := get("TIMEOUT"); text != "" {
		ms, err := strconv.Atoi(text)
		if err != nil || ms <= 0 {
			return nil, wrong("OTEL_EXPORTER_OTLP_TIMEOUT", text, "a number of milliseconds")
		}
		c.timeout = time.Duration(ms) * time.Millisecond
	}
	for pair := range strings.SplitSeq(get("HEADERS"), ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if name == "" && !ok {
			continue
		}
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); err != nil || !ok || name == "" {
			return nil, wrong("OTEL_EXPORTER_OTLP_HEADERS", "a pair has no name, or an invalid escape",
				"name=value, with commas between")
		}
		logf.Redact(value) // it is usually a key
		c.headers[name] = value
	}
	if file := get("CERTIFICATE"); file != "" {
		pem, err := os.ReadFile(file)
		c.roots = x509.NewCertPool()
		if err != nil || !c.roots.AppendCertsFromPEM(pem) {
			return nil, wrong("OTEL_EXPORTER_OTLP_CERTIFICATE", file, "a file of certificates in PEM")
		}
	}
	return c, nil
}

func wrong(name, value, want string) error {
	return errors.Remedy(errors.Newf(errors.Invalid, "invalid %s: %.100s", name, value), "write %s, or unset it", want)
}

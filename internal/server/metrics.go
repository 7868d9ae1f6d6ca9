package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// metrics are the metrics at /metrics (https://prometheus.io/docs/instrumenting/exposition_formats/). Labels never
// contain values that clients choose freely.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "harvest_http_requests_total",
			Help: "Requests, by route and status."}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "harvest_http_request_seconds",
			Help:    "Duration of requests by route, streams included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, []string{"route"}),
	}
	gauge := func(name, help string, value func(fleet.Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return value(s.opts.Fleet.Stats()) })
	}
	count := func(name, help string, value func(fleet.Stats) float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return value(s.opts.Fleet.Stats()) })
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.requests, m.seconds,
		gauge("harvest_sandboxes", "Sandboxes that have not ended.", func(v fleet.Stats) float64 {
			n := 0
			for _, c := range v.Sandboxes {
				n += c
			}
			return float64(n)
		}),
		gauge("harvest_sandboxes_running", "Running sandboxes.",
			func(v fleet.Stats) float64 { return float64(v.Sandboxes[record.Running]) }),
		gauge("harvest_sandboxes_suspended", "Suspended sandboxes, which use and reserve nothing.",
			func(v fleet.Stats) float64 { return float64(v.Sandboxes[record.Suspended]) }),
		gauge("harvest_sandboxes_lost", "Sandboxes that should run but are unreachable.",
			func(v fleet.Stats) float64 { return float64(v.Sandboxes[record.Lost]) }),
		gauge("harvest_sandboxes_warm", "Sandboxes booted ahead of need.",
			func(v fleet.Stats) float64 { return float64(v.Warm) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "harvest_session_spares",
			Help: "Spare sessions that wait for a prompt."}, func() float64 { return float64(s.spares()) }),
		gauge("harvest_sandboxes_leftover", "Ended sandboxes that still hold resources.",
			func(v fleet.Stats) float64 { return float64(v.Leftover) }),
		gauge("harvest_commands_running", "Running commands.",
			func(v fleet.Stats) float64 { return float64(v.Commands) }),
		gauge("harvest_reserved_cpu_cores", "Cores reserved by sandboxes.",
			func(v fleet.Stats) float64 { return v.CPU }),
		gauge("harvest_reserved_memory_bytes", "Memory reserved by sandboxes.",
			func(v fleet.Stats) float64 { return float64(v.Memory) }),
		gauge("harvest_used_memory_bytes", "Memory of sandboxes at the last measurement.",
			func(v fleet.Stats) float64 { return float64(v.Used.Memory) }),
		count("harvest_used_cpu_seconds_total", "Measured CPU time of sandboxes.",
			func(v fleet.Stats) float64 { return v.Used.CPU }),
		count("harvest_received_bytes_total", "Bytes received by the network interfaces of sandboxes.",
			func(v fleet.Stats) float64 { return float64(v.Used.Received) }),
		count("harvest_sent_bytes_total", "Bytes sent by the network interfaces of sandboxes.",
			func(v fleet.Stats) float64 { return float64(v.Used.Sent) }),
		count("harvest_sandboxes_created_total", "Sandboxes created since the server started.",
			func(v fleet.Stats) float64 { return float64(v.Created) }),
		count("harvest_sandboxes_failed_total", "Sandboxes failed since the server started.",
			func(v fleet.Stats) float64 { return float64(v.Failed) }),
		count("harvest_sandboxes_warm_used_total", "Sandboxes taken from the pool of booted ones.",
			func(v fleet.Stats) float64 { return float64(v.WarmUsed) }),
	)
	return m
}

// done counts a request. pattern is the route's pattern, "" without a route.
func (m *metrics) done(pattern string, status int, took time.Duration) {
	if pattern == "" || pattern == "/" {
		pattern = "none"
	}
	m.requests.WithLabelValues(pattern, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(pattern).Observe(took.Seconds())
}

// showMetrics is for the operator: a key of the personal account with read access.
func (s *Server) showMetrics(w http.ResponseWriter, r *http.Request) error {
	if edge.Account(r) != account.Personal {
		return errors.Remedy(errors.Newf(errors.Denied, "metrics are for operators of the server only"),
			"use a key of the account %q", account.Personal)
	}
	promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}

package oci

import "time"

// Hurry shortens a source's wait between attempts, and its wait for a silent registry.
func (s *Source) Hurry(pause, stall time.Duration) { s.pause, s.stall = pause, stall }

package main

import (
	"os"
	"path/filepath"
	"sync"
	"time"
)

const diskInterval = 50 * time.Millisecond

// disk writes and syncs a little beside the cluster's data, so that the report can tell a stall of the machine from one
// of the cluster.
type disk struct {
	mutex sync.Mutex
	syncs []diskSync
}

type diskSync struct {
	started time.Time
	took    time.Duration
}

func watchDisk(dir string) (*disk, error) {
	file, err := os.Create(filepath.Join(dir, "failover-disk-watch"))
	if err != nil {
		return nil, err
	}
	d := &disk{}
	go func() {
		defer file.Close()
		block := make([]byte, 4096)
		for {
			started := time.Now()
			if _, err := file.WriteAt(block, 0); err != nil {
				return
			}
			if err := file.Sync(); err != nil {
				return
			}
			d.mutex.Lock()
			d.syncs = append(d.syncs, diskSync{started, time.Since(started)})
			d.mutex.Unlock()
			time.Sleep(diskInterval)
		}
	}()
	return d, nil
}

// slowest gives the longest sync, in ms, that touched the time from `from` to `to`.
func (d *disk) slowest(from, to time.Time) float64 {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	slowest := time.Duration(0)
	for _, s := range d.syncs {
		if s.started.Before(to) && s.started.Add(s.took).After(from) {
			slowest = max(slowest, s.took)
		}
	}
	return millis(slowest)
}

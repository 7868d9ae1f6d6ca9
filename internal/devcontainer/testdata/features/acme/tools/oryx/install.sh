#!/bin/sh
set -e
echo "installing oryx"
